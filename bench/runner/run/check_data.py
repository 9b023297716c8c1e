"""Check the folders of data that a manifest names, before anything is measured.

In: a manifest, on the machine that measures. Out: nothing, or BadInput with every mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.base.errors import BadInput
from bench.planning.manifest import Manifest


def check_data(manifest: Manifest, where: str) -> None:
    """Raise BadInput if a folder of data cannot be read as its model needs; `where` names the manifest."""
    if not any(request.data for request in manifest.requests):
        return
    from bench.runner.trial.data_folder import data_mistakes  # imports numpy, which planning does without

    mistakes = [
        mistake
        for i, request in enumerate(manifest.requests)
        if request.data
        for mistake in data_mistakes(request.model, Path(request.data), f"/models/{i}/data")
    ]
    if mistakes:
        raise BadInput.of(mistakes, where)


def remarks_about_data(manifest: Manifest) -> Iterator[str]:
    """Yield a line for each folder of data that is not on this machine: planning needs none."""
    for i, request in enumerate(manifest.requests):
        if request.data and not Path(request.data).is_dir():
            yield f"/models/{i}/data: {request.data} is not here; it is checked where the run begins"

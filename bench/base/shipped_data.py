"""Read the JSON files of bench/data, and find the Dockerfile, locks and manifests that bench came with."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
MANIFEST_SCHEMA = "schema/manifest-v1.json"  # for editors; lists all models and methods
PUBLISHED = "published.json"  # throughputs that others published
_BESIDE = Path(__file__).parents[2]  # folder of the package: the repository, or an environment's packages
_CARRIED = "bench_source"  # where setup.py puts the repository's files in a wheel


@cache
def read_data(name: str) -> Any:
    """Return a parsed JSON file of bench/data; every process parses it once."""
    from bench.base.strict_json import strict_loads  # not needed to start a command

    return strict_loads((DATA / name).read_bytes())


def repository() -> Path:
    """Return the folder with Dockerfile, locks and manifests: bench's checkout, or the copy in its wheel."""
    return _BESIDE if (_BESIDE / "Dockerfile").exists() else _BESIDE / _CARRIED


def locks_folder() -> Path:
    """Return the folder whose locks are used: the working folder if it is a checkout, else `repository`."""
    here = Path.cwd()
    return here if (here / "docker/cpu.lock").exists() else repository()


def manifest_path(text: str) -> Path:
    """Return the path of a manifest; that of the shipped one if `manifests/NAME` does not exist here."""
    path = Path(text)
    if path.parent != Path("manifests") or os.path.lexists(path):
        return path
    shipped = repository() / path
    return shipped if os.path.lexists(shipped) else path

"""Options of all commands that measure this machine, and a run that is compared with an earlier one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput
from bench.signing.ssh_keys import PublicKey

if TYPE_CHECKING:
    from bench.planning.manifest import Manifest
    from bench.training.models import Counted


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureArguments:
    """Options that all commands have that measure this machine."""

    out: Path
    key: Path | None
    device: str
    engine: str
    image: str | None
    as_json: bool

    @property
    def on_cpu(self) -> bool:
        """Whether the user asked to use no GPU, even where there is one."""
        return self.device == "cpu"

    @property
    def in_image(self) -> bool:
        """Whether the command runs in a container; BadInput for --image without one or --key with one."""
        if self.engine == "none":
            if self.image is not None:
                raise BadInput("--image without --engine", advice="--engine docker, podman or apptainer")
            return False
        if self.key is not None:
            what = "--key names a file of this machine, and a container has its own key for each run"
            raise BadInput(what, advice="leave --key out")
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatArguments(MeasureArguments):
    """Arguments of a run that is compared with an earlier one."""

    again: Path | None  # bundle of the run to compare, if it exists; None: run it now
    trust: Path | None
    revoked: Path | None
    budget_seconds: float | None
    tolerance: float


def measured_here(
    manifest: Manifest, request: RepeatArguments, counted: Mapping[str, Counted] | None = None
) -> Path:
    """Measure a manifest on this machine, say who signed, and return the bundle."""
    from bench.library.sealer import make_sealer
    from bench.runner.run.execute import execute
    from bench.runner.run.progress import Progress

    finished = execute(
        manifest,
        request.out,
        make_sealer(manifest.digest, request.key, None, on_stderr),
        Progress(),
        resume=False,
        budget_seconds=request.budget_seconds,
        on_cpu=request.on_cpu,
        counted=counted,
    )
    signer = PublicKey.of(finished.seal.key).fingerprint
    print(f"bundle {finished.bundle}   {signed_text(signer, None)}", file=sys.stderr)
    return finished.bundle


def on_stderr(line: str) -> None:
    """Print a line on stderr, for functions that take where to report to."""
    print(line, file=sys.stderr)


def signed_text(signed_by: str, certified_by: str | None) -> str:
    """Say who signed a bundle, given fingerprints of its key and of the authority that certified that key."""
    if certified_by is None:
        return f"signed by {signed_by}"
    return f"signed by a key that {certified_by} certified for this run"

"""The parts that bundles of runs and of node checks have in common: statement, SBOM, logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.base.kernel_list import KERNEL_LIST, read_kernels, sbom_with
from bench.base.names import IMAGE_SBOM
from bench.base.stamps import utc
from bench.bundle.statement import Predicate, identity_of
from bench.records.run_results import RunFacts
from bench.records.trial import NodeFacts
from bench.runner.run.fit_into_bundle import fitting_logs
from bench.runner.run.seal import Seal


def surroundings(folder: Path, root: Path = Path("/")) -> dict[str, bytes | Path]:
    """Return members of a bundle by name: the SBOM, if bench runs in an image, and the logs in `folder`.

    The SBOM has the wheels of the image's kernel layer. `root` is the image's root folder.
    """
    listed, kernels = root / IMAGE_SBOM, root / KERNEL_LIST
    if not listed.exists():
        return {**fitting_logs(folder / "logs")}
    sbom = listed.read_bytes()
    if kernels.exists():
        sbom = sbom_with(sbom, read_kernels(kernels.read_bytes()))
    return {"sbom.cdx.json": sbom, **fitting_logs(folder / "logs")}


def predicate(
    run: RunFacts, node: NodeFacts, manifest_digest: str, seal: Seal, gpus: Sequence[str] | None = None
) -> Predicate:
    """Return the predicate of the bundle's signed statement. `gpus`: UUIDs, by default those of `node`."""
    return Predicate(
        run_id=run.id,
        manifest_sha256=manifest_digest.removeprefix("sha256:"),
        node=identity_of(node, gpus),
        started_at=utc(run.started_at),
        ended_at=utc(run.ended_at),
        complete=run.complete,
        level="operator" if seal.certificate else "self",
        nonce=seal.nonce,
    )

"""Reduce a verified node check to what the comparison of a fleet needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.base.stamps import utc
from bench.node_check.check_results import CheckContents
from bench.node_check.judging.evidence import BEFORE, Evidence
from bench.node_check.judging.finding import Finding

FIGURES = ("matmul", "memory", "copies", "peers", "all-reduce")


@dataclass(frozen=True, slots=True)
class Value:
    """One measured figure of one check."""

    check: str
    figure: str  # with the algorithm, for a collective
    unit: str
    rate: float
    gpu: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One check of one node, reduced to what the fleet comparison needs."""

    path: str
    run_id: str
    started_at: str
    identity: str  # digest of the UUIDs of its GPUs
    kind: str  # the model of its GPUs
    uuids: Mapping[str, str]  # of the GPUs that answered, by their index as text
    level: str
    simulated: bool
    findings: tuple[Finding, ...]
    values: tuple[Value, ...]
    gpu_count: int = 0
    driver: str = ""
    vbios: str = ""  # several, where its GPUs differ
    host_bytes: int = 0

    @property
    def name(self) -> str:
        return Path(self.path).stem


def fleet_member(path: Path, check: CheckContents) -> FleetMember:
    results, evidence = check.results, check.evidence
    # A lost GPU has no UUID, only a placeholder that is the same on every node.
    uuids = {str(gpu.index): gpu.uuid for gpu in results.node.gpus if gpu.memory_bytes}
    identity = " ".join(sorted(uuids.values())) or f"run {results.run.id}"
    vbios = {str(gpu.get("VbiosVersion") or "") for gpu in evidence.inventory(BEFORE)}
    return FleetMember(
        path=str(path),
        run_id=results.run.id,
        started_at=utc(results.run.started_at),
        identity=hashlib.sha256(identity.encode()).hexdigest()[:12],
        kind=results.node.gpus[0].name if results.node.gpus else results.node.cpu,
        uuids=uuids,
        level=results.level,
        simulated=results.simulated,
        findings=results.findings,
        values=tuple(_values(evidence)),
        gpu_count=len(results.node.gpus),
        driver=str((evidence.data(BEFORE) or {}).get("driver") or ""),
        vbios=", ".join(sorted(vbios - {""})),
        host_bytes=results.node.memory_bytes,
    )


def _values(evidence: Evidence) -> Iterable[Value]:
    data = evidence.data("all-reduce") or {}
    for check in FIGURES:
        for figure in evidence.figures(check):
            gpu = evidence.gpu(figure.gpu)
            name = figure.kind or figure.name
            if check == "all-reduce":
                chosen = {str(name) for name in data.get("algorithms", {}).values()} or {"unknown"}
                name = f"{figure.name} by {'/'.join(sorted(chosen))}"
            yield Value(check, name, figure.unit, figure.rate, figure.gpu, gpu.uuid if gpu else None)

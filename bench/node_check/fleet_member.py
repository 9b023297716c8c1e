"""One node's check, as far as the comparison of many needs it."""

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
    check: str
    figure: str  # with the algorithm, for a collective
    unit: str
    rate: float
    gpu: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One check of one node, as far as the fleet needs it."""

    path: str
    run_id: str
    started_at: str
    identity: str  # of these very GPUs together
    kind: str  # the model of its GPUs
    uuids: Mapping[str, str]  # by GPU index, as text; of those that answered
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
    # One that is lost does not say who it is: what stands in its place is no name, the same on every node.
    uuids = {str(gpu.index): gpu.uuid for gpu in results.node.gpus if gpu.memory_bytes}
    identity = " ".join(sorted(uuids.values())) or f"run {results.run.id}"
    return FleetMember(
        str(path),
        results.run.id,
        utc(results.run.started_at),
        hashlib.sha256(identity.encode()).hexdigest()[:12],
        results.node.gpus[0].name if results.node.gpus else results.node.cpu,
        uuids,
        results.level,
        results.simulated,
        results.findings,
        tuple(_values(evidence)),
        len(results.node.gpus),
        str((evidence.data(BEFORE) or {}).get("driver") or ""),
        ", ".join(sorted({str(v) for g in evidence.inventory(BEFORE) if (v := g.get("VbiosVersion"))})),
        results.node.memory_bytes,
    )


def _values(evidence: Evidence) -> Iterable[Value]:
    data = evidence.data("all-reduce") or {}
    for check in FIGURES:
        for figure in evidence.figures(check):
            gpu = evidence.gpu(figure.gpu) if figure.gpu is not None else None
            name = figure.kind or figure.name
            if check == "all-reduce":
                chosen = {str(name) for name in data.get("algorithms", {}).values()} or {"unknown"}
                name = f"{figure.name} by {'/'.join(sorted(chosen))}"
            yield Value(check, name, figure.unit, figure.rate, figure.gpu, gpu.uuid if gpu else None)

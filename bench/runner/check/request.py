"""The request for a node check, and the jobs that the check sends to its workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.node_check.check_manifest import CheckManifest
from bench.node_check.checks import CheckBudget
from bench.node_check.judging import Depth
from bench.node_check.judging.standards import Baseline, Past
from bench.runner.processes.jobs import DeviceKind, Nodes


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A manifest with the options of `bench check`."""

    manifest: CheckManifest
    level: Depth
    out: Path
    device: Literal["cpu", "cuda"]
    skip: tuple[str, ...]
    scratch: Path | None
    history: Mapping[str, Past]  # by GPU UUID, and by the machine's digest
    disks: tuple[str, ...] = ()  # folders on the file systems to measure
    baseline: Baseline | None = None
    if_idle: bool = False  # check nothing if another process uses a GPU
    nodes: Nodes | None = None  # this node's place among those of the level `nodes`


@dataclass(frozen=True, slots=True)
class InventoryJob:
    """Read every GPU's state through NVML."""

    kind: Literal["inventory"] = "inventory"


@dataclass(frozen=True, slots=True)
class IdleJob:
    """Sample the GPUs for a few seconds while bench does not use them."""

    kind: Literal["idle"] = "idle"


@dataclass(frozen=True, slots=True)
class TelemetryJob:
    """Append a first and a last reading of all GPUs to telemetry, without load between them."""

    file: str
    kind: Literal["telemetry"] = "telemetry"


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Take the reading of one check."""

    check: str  # its name
    team: int  # processes
    gpus: tuple[int, ...]  # indices
    budget: CheckBudget
    torch: bool  # whether the check needs a rig
    collective: bool
    environment: Mapping[str, str]
    device: Literal["cpu", "cuda"]
    kind: Literal["check"] = "check"


@dataclass(frozen=True, slots=True)
class NodesJob:
    """Do this node's part of the checks between nodes; the leader's reading has all of them."""

    nodes: Nodes
    gpus: tuple[int, ...]  # indices; on a CPU a number for each process
    warm_seconds: float
    seconds: float  # of one direction of a pair, and of one exchange
    limit_seconds: float  # of all steps together
    device: DeviceKind
    kind: Literal["nodes"] = "nodes"

    @property
    def lanes(self) -> int:
        """How many processes of this node take part, one for each GPU."""
        return len(self.gpus)


AnyCheckJob = InventoryJob | IdleJob | TelemetryJob | CheckJob | NodesJob

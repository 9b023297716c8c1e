"""Checks: questions about a node's health, each one file with a value `CHECK`.

A check measures in the worker, in a process group of its own, or measures nothing and reads what NVML said
before and after; then it judges. Judging is pure: `bench verify` does it again from what the bundle holds.
A new check is a new file, found by its name here; tests/checks runs a contract over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol, TypeVar

from bench.node_check.judging import Level
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from bench.records.trial import Gpu

# In the order in which they run and are shown: what needs a quiet node first, the soak last.
_CHECK_FILES = (
    "present",
    "alike",
    "strangers",
    "clock",
    "disk",
    "host_memory",
    "matmul",
    "memory",
    "copies",
    "peers",
    "all_reduce",
    "agreement",
    "soak",
    "pcie",
    "nvlink",
    "fabric",
    "power",
    "ecc",
    "rows",
    "xid",
)
T = TypeVar("T")


class Rig(Protocol):
    """What a check measures with: one device of a team, or all devices in one process."""

    kind: Literal["cpu", "cuda"]
    rank: int
    size: int  # devices of the team
    gpus: list[int]  # of the node, by their indices there, in the team's order
    gpu: int  # this process's own
    device: Any  # torch.device

    def at(self, place: int) -> Any: ...  # the device of gpus[place], where one process has them all

    def timed(
        self,
        call: Callable[[], object],
        work: float,
        *,
        wait: bool = True,  # for the team, so that all measure at once
        group: Any = None,  # of processes that call together, and so must call equally often
        seconds: float | None = None,  # instead of the level's
        warm_seconds: float | None = None,
    ) -> TimedWork: ...

    def synchronise(self) -> None: ...

    def wait(self) -> None: ...  # until every member is here

    def gather(self, value: T) -> list[T]: ...

    def say(self, phase: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TimedWork:
    """Equal pieces of work by the clock, between synchronisations."""

    work: float
    samples: tuple[float, ...]  # seconds


@dataclass(frozen=True, slots=True)
class CheckBudget:
    """How long a check may take pains, by level."""

    level: Level
    warm_seconds: float
    seconds: float  # of one figure
    soak_seconds: float
    scratch: str  # a directory to write into
    tiny: bool  # a rehearsal on a CPU: sizes that end at once


@dataclass(frozen=True, slots=True)
class Check:
    """The contract. `measure` imports torch when it is called, in the worker alone."""

    name: str
    question: str
    judge: Callable[[Evidence, Standards], Iterator[Finding]]
    measure: Callable[[Rig, CheckBudget], Mapping[str, Any]] | None = None
    # team: a process a GPU; one: a process that sees them all; host: it needs no GPU.
    workers: Literal["team", "one", "host"] = "host"
    least_gpus: int = 0
    limit_seconds: float = 60.0  # and twice its soak, where it soaks
    soaks: bool = False
    collective: bool = False  # on the GPUs, and so through NCCL; starting that takes its time
    about_gpus: bool = False  # a CPU cannot be asked, though something is measured
    # Whose a failure is: the card's, wherever it goes; the node's around it, settings and driver too; or of
    # guests at work there, beside whom no rate says anything of the card.
    blames: Literal["card", "node", "guests"] = "card"
    needs: tuple[str, ...] = ()  # packages
    environment: Mapping[str, str] = field(default_factory=dict)  # of the worker, before it starts

    def refuse(self, device: Literal["cpu", "cuda"], gpus: tuple[Gpu, ...], count: int) -> str | None:
        """Why such a node cannot be asked this; None if it can. `count` devices take part."""
        if self.least_gpus > count:
            return "needs two GPUs" if self.least_gpus == 2 else f"needs {self.least_gpus} GPUs"
        if device == "cpu" and (self.measure is None or self.about_gpus):
            return "is about a GPU"
        return None


@cache
def known_checks() -> Mapping[str, Check]:
    files = [import_module(f"bench.node_check.checks.{name}") for name in _CHECK_FILES]
    return {file.CHECK.name: file.CHECK for file in files}


def not_read(
    check: str, reason: str, *, counts: bool = True, advice: str = "", gpu: int | None = None
) -> Finding:
    """A check that has no answer: never a pass."""
    subject = "the node" if gpu is None else f"GPU {gpu}"
    return Finding(
        check, subject, "not-run", reason, "an answer", "rule", "bench", advice, gpu, counts=counts
    )

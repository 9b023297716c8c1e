"""Checks of a node's health, one file each with a value `CHECK`, and the contract that they all keep.

A check either measures, in a worker with a separate process group, or uses NVML's inventories from before
and after the load. Its `measure(rig, budget)` returns the reading, and its `judge(evidence, standards)`
yields the findings. Judging is pure, so that `bench verify` can repeat it from a bundle. A new check is a new
file, and its name in bench/node_check/all_checks.py. tests/node_check/checks tests the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from bench.node_check.judging import WITHOUT_LOAD, Depth
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from bench.records.trial import Gpu


class Rig(Protocol):
    """The devices a check measures with: one device for each process of a team, or all in one process."""

    kind: Literal["cpu", "cuda"]
    rank: int
    size: int  # devices of the team
    gpus: list[int]  # indices on the node, in the team's order
    gpu: int  # index of this process's GPU on the node
    device: Any  # torch.device

    def at(self, place: int) -> Any:
        """Return the torch.device of gpus[place], if one process has them all."""

    def timed(
        self,
        call: Callable[[], object],
        work: float,  # FLOP or bytes of one call
        *,
        wait: bool = True,  # wait for the team, so that all measure at once
        group: Any = None,  # processes that call together and so must call equally often
        seconds: float | None = None,  # overrides the budget
        warm_seconds: float | None = None,
    ) -> TimedWork:
        """Repeat a call for the budget's seconds, after a warm-up; return the time of each repetition."""

    def synchronise(self) -> None:
        """Wait until the devices have done all the work that they were given."""

    def wait(self) -> None:
        """Wait until every member of the team arrives here."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all members, each as a JSON document, in the order of their ranks."""

    def say(self, phase: str) -> None:
        """Tell the user which part of the check runs now."""


class TimedWork(NamedTuple):
    """Wall times of equal pieces of work, each between two synchronisations."""

    work: float  # FLOP or bytes of one piece
    samples: tuple[float, ...]  # seconds


@dataclass(frozen=True, slots=True)
class CheckBudget:
    """The time that a check may take at one depth, and where it may write."""

    depth: Depth
    warm_seconds: float
    seconds: float  # of one figure
    soak_seconds: float
    scratch: str  # a directory to write into
    tiny: bool  # on a CPU, where sizes are minimal
    file_systems: tuple[str, ...] = ()  # folders on the file systems to measure


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `measure` runs in a worker only and imports torch when it is called; `judge` is pure."""

    name: str
    question: str
    judge: Callable[[Evidence, Standards], Iterator[Finding]]
    measure: Callable[[Rig, CheckBudget], Mapping[str, Any]] | None = None
    # team: one process for each GPU; one: a single process that sees all GPUs; host: no GPU needed;
    # nodes: processes of several nodes, which bench/runner/check/between_nodes.py starts.
    workers: Literal["team", "one", "host", "nodes"] = "host"
    least_gpus: int = 0
    limit_seconds: float = 60.0  # plus twice the soak if `soaks`
    soaks: bool = False
    collective: bool = False  # the GPUs exchange data through NCCL, which takes time to start
    about_gpus: bool = False  # not applicable to a CPU, though something is measured
    # The part to blame for a failure: the card; the node around it, with its settings and driver; or guests,
    # which are other processes: while they run, no rate says anything about the card.
    blames: Literal["card", "node", "guests"] = "card"
    torch: bool = True  # whether measuring needs torch
    # Also made at the level `passive`: it puts no load on the node, and jobs do not change its answer.
    passive: bool = False
    # Also made at the level `prolog`, before a job begins: it puts no load on the node.
    prolog: bool = False
    thorough: bool = False  # left out at the level `quick`: it loads the machine for long
    between_nodes: bool = False  # made at the level `nodes`, by several nodes together
    # Some bundles were written before the check existed. Without its reading, it does not count.
    has_older_bundles: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # for the worker

    def is_asked_at(self, depth: Depth) -> bool:
        """Whether results of this depth have an answer to the check, which may be that it was not made."""
        return self.between_nodes if depth == "nodes" else self.workers != "nodes"

    def is_made_at(self, depth: Depth) -> bool:
        """Whether the check is made at this depth."""
        if depth in WITHOUT_LOAD:
            return self.passive or (depth == "prolog" and self.prolog)
        return not (self.thorough and depth == "quick")

    def refuse(self, device: Literal["cpu", "cuda"], gpus: tuple[Gpu, ...], count: int) -> str | None:
        """Say why the check does not apply to such a node; None if it does. `count` devices take part."""
        if self.least_gpus > count:
            return "needs two GPUs" if self.least_gpus == 2 else f"needs {self.least_gpus} GPUs"
        if device == "cpu" and (self.measure is None or self.about_gpus):
            return "is about a GPU"
        return None

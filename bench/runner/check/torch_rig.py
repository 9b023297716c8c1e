"""The rig of a node check in torch: one device of a team, or all devices in one process. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from bench.node_check.checks import CheckBudget, TimedWork
from bench.runner.trial.device import Device
from bench.runner.trial.team import Team

SAMPLE_SECONDS = 0.05  # between two synchronisations: long compared with clock resolution and waiting
MAX_SAMPLES = 2000


class TorchRig:
    """Implements bench.node_check.checks.Rig for this process of a team."""

    def __init__(
        self, device: Device, team: Team, gpus: list[int], budget: CheckBudget, say: Callable[[str], None]
    ) -> None:
        self.kind: Literal["cpu", "cuda"] = device.kind
        self.rank = team.rank
        self.size = len(gpus)
        self.gpus = gpus
        self.gpu = gpus[team.rank] if gpus else 0
        self.device = device.torch
        self._device = device
        self._team = team
        self._budget = budget
        self.wait = team.wait
        self.gather = team.gather
        self.say = say

    def at(self, place: int) -> torch.device:
        """Return the device at a place among those of the check; on a CPU all places are the CPU."""
        return torch.device("cuda", place) if self.kind == "cuda" else torch.device("cpu")

    def timed(
        self,
        call: Callable[[], object],
        work: float,
        *,
        wait: bool = True,
        group: Any = None,
        seconds: float | None = None,
        warm_seconds: float | None = None,
    ) -> TimedWork:
        """Time `call` in samples of equal length, after a warm-up. `work`: FLOP or bytes of one call."""
        seconds = self._budget.seconds if seconds is None else seconds
        warm_seconds = self._budget.warm_seconds if warm_seconds is None else warm_seconds
        call()
        self.synchronise()
        each = self._agreed(max(self._once(call, 1), 1e-7), group)
        calls = max(1, round(SAMPLE_SECONDS / each))
        for _ in range(round(warm_seconds / (calls * each))):
            self._once(call, calls)
        # A warm device may be faster or slower: its time now decides the number of samples.
        each = self._agreed(self._once(call, calls) / calls, group)
        count = min(MAX_SAMPLES, max(2, round(seconds / (calls * each))))
        if wait:
            self.wait()
        return TimedWork(work * calls, tuple(self._once(call, calls) for _ in range(count)))

    def _once(self, call: Callable[[], object], calls: int) -> float:
        self.synchronise()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        self.synchronise()
        return time.perf_counter() - started

    def _agreed(self, value: float, group: Any) -> float:
        """Return the largest value of the group's members, so that all make equally many calls."""
        if group is None:
            return value
        largest = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return float(largest)

    def synchronise(self) -> None:
        """Wait until the devices of this process are idle; on a CPU nothing runs ahead."""
        if self.kind == "cuda":
            # Wait for all devices if one process has them all: a copy between two of them ends on either.
            for index in range(self.size) if self._team.size == 1 else (self._device.index,):
                torch.cuda.synchronize(index)

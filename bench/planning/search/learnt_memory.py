"""Which trials may fit, by what others took: of models whose activations no formula predicts. Pure.

What lies there before any sample is known of every setting; what a sample takes is learnt. What a trial that
ran out of memory had left is the least of it, and holds for every setting that saves no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from bench.planning.plan import DOUBT, USABLE, SettingPlan
from bench.records.trial import Measured, Outcome, OutOfMemory, Trial
from bench.training.methods import known_methods
from bench.training.setting import Setting, halves_weights

LEAP = 4  # times fewer samples are next where memory ran out that nothing predicts, or the time was up


class _Learnt(NamedTuple):
    """Bytes of a sample, where these methods made it smaller."""

    saving: frozenset[str]
    bytes_: float
    micro_batch: int


class LearntMemory:
    """Of one model."""

    def __init__(self, cells: Sequence[SettingPlan], known: Mapping[str, Outcome], memory_bytes: int) -> None:
        self._memory = memory_bytes
        self._least = list(self._of_those_that_ran_out(cells, known))
        self._taken = list(_of_those_that_fitted(cells, known))

    def __call__(self, cell: SettingPlan, trial: Trial) -> Literal["yes", "hardly", "no"]:
        """Yes as well where nothing speaks against it."""
        if cell.least_bytes is None or cell.needs[trial.micro_batch] is not None:
            return "yes"
        ours, room = _saving(trial.setting), self._memory - (1 - DOUBT) * cell.least_bytes
        least = max((one.bytes_ for one in self._least if ours <= one.saving), default=0.0)
        if room < trial.micro_batch * max(least, 0.0):
            return "no"
        room = USABLE * self._memory - cell.least_bytes
        # Only an order, so what saves most of all decides which are alike.
        taken = [one.bytes_ for one in self._taken if _alike(ours, one)]
        if not taken:
            ran_out = (one.micro_batch for one in self._least if _alike(ours, one))
            return "hardly" if min(ran_out, default=math.inf) < LEAP * trial.micro_batch else "yes"
        return "hardly" if room < trial.micro_batch * max(taken) else "yes"

    def _of_those_that_ran_out(
        self, cells: Sequence[SettingPlan], known: Mapping[str, Outcome]
    ) -> Iterator[_Learnt]:
        for cell, trial, outcome in _outcomes(cells, known):
            if isinstance(outcome, OutOfMemory) and outcome.where == "gpu":
                left = USABLE * self._memory - (1 + DOUBT) * (cell.least_bytes or 0)
                yield _Learnt(_saving(trial.setting), left / trial.micro_batch, trial.micro_batch)


def _of_those_that_fitted(cells: Sequence[SettingPlan], known: Mapping[str, Outcome]) -> Iterator[_Learnt]:
    """Of a setting with its most samples: with few, what lies there anyway would count for theirs."""
    for cell in cells:
        most = max(
            ((t.micro_batch, o.measurement.peak_bytes) for _, t, o in _outcomes([cell], known)
             if isinstance(o, Measured)), default=None,
        )  # fmt: skip
        if most is not None:
            yield _Learnt(_saving(cell.setting), (most[1] - (cell.least_bytes or 0)) / most[0], most[0])


def _alike(saving: frozenset[str], other: _Learnt) -> bool:
    return ("checkpointing" in saving) == ("checkpointing" in other.saving)


def _outcomes(
    cells: Sequence[SettingPlan], known: Mapping[str, Outcome]
) -> Iterator[tuple[SettingPlan, Trial, Outcome]]:
    for cell in cells:
        for identity, trial in zip(cell.ids, cell.trials, strict=True):
            if identity in known and cell.least_bytes is not None:
                yield cell, trial, known[identity]


def _saving(setting: Setting) -> frozenset[str]:
    """What may make activations smaller. What is sharded computes in half precision, as half-weights does."""
    saving = {name for name in setting if known_methods()[name].changes_activations}
    return frozenset(saving | {"half-weights"} if halves_weights(setting) else saving)

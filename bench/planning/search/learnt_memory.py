"""Learn from tried trials which micro-batches fit into memory, for models without a formula of activations.

In: the trials tried so far. Out: for an open trial, "yes", "hardly" or "no". Pure.

The memory before any sample is known for every setting; the memory of a sample is learnt. If a trial ran out
of memory, its samples need more than the room that it had. This also holds for settings that save no more
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from bench.planning.plan import DOUBT, USABLE, SettingPlan
from bench.planning.search.tried_trials import BACKOFF, MeasuredTrial, TriedTrials
from bench.records.trial import OutOfMemory, Trial
from bench.training.methods import method_named
from bench.training.setting import SETTINGS_KEPT, Setting, halves_weights


class _SampleMemory(NamedTuple):
    """Bytes of a sample in a setting, and the methods of that setting that make samples smaller."""

    saving: frozenset[str]
    bytes_: float
    micro_batch: int


class LearntMemory:
    """The memory of one model's samples, learnt from its tried trials."""

    def __init__(self, tried: TriedTrials, memory_bytes: int) -> None:
        self._memory = memory_bytes
        self._ran_out = list(_lower_bounds(tried, memory_bytes))
        self._fitted = list(_of_largest_fitting(tried))

    def __call__(self, plan: SettingPlan, trial: Trial) -> Literal["yes", "hardly", "no"]:
        """Return whether a trial fits: "yes" also if nothing speaks against it; "hardly" is an estimate."""
        if plan.least_bytes is None or plan.needs[trial.micro_batch] is not None:
            return "yes"
        saving = _saving(trial.setting)
        room = self._memory - (1 - DOUBT) * plan.least_bytes
        at_least = max((sample.bytes_ for sample in self._ran_out if saving <= sample.saving), default=0.0)
        if room < trial.micro_batch * max(at_least, 0.0):
            return "no"
        room = USABLE * self._memory - plan.least_bytes
        # "hardly" only orders trials, so settings count as alike by checkpointing alone, which saves most.
        fitted = [sample.bytes_ for sample in self._fitted if _alike(saving, sample)]
        if not fitted:
            ran_out = (sample.micro_batch for sample in self._ran_out if _alike(saving, sample))
            return "hardly" if min(ran_out, default=math.inf) < BACKOFF * trial.micro_batch else "yes"
        return "hardly" if room < trial.micro_batch * max(fitted) else "yes"


def _lower_bounds(tried: TriedTrials, memory_bytes: int) -> Iterator[_SampleMemory]:
    """Yield lower bounds of a sample's memory, one from each trial that ran out of the GPU's memory."""
    for plan, trial, failure in tried.failed:
        if isinstance(failure, OutOfMemory) and failure.where == "gpu" and plan.least_bytes is not None:
            room = USABLE * memory_bytes - (1 + DOUBT) * plan.least_bytes
            yield _SampleMemory(_saving(trial.setting), room / trial.micro_batch, trial.micro_batch)


def _of_largest_fitting(tried: TriedTrials) -> Iterator[_SampleMemory]:
    """Yield the memory of a sample in each setting, at its largest measured micro-batch.

    At small micro-batches, an error in the memory before any sample would count as the samples' memory.
    """
    largest: dict[Setting, MeasuredTrial] = {}
    for measured in sorted(tried.measured, key=lambda measured: measured.trial.micro_batch):
        largest[measured.plan.setting] = measured
    for plan, trial, measurement in largest.values():
        if plan.least_bytes is not None:
            taken = measurement.peak_bytes - plan.least_bytes
            yield _SampleMemory(_saving(trial.setting), taken / trial.micro_batch, trial.micro_batch)


def _alike(saving: frozenset[str], sample: _SampleMemory) -> bool:
    return ("checkpointing" in saving) == ("checkpointing" in sample.saving)


@lru_cache(SETTINGS_KEPT)
def _saving(setting: Setting) -> frozenset[str]:
    """Return the methods that may make activations smaller; sharding implies half-weights' precision."""
    saving = {name for name in setting if method_named(name).changes_activations}
    return frozenset(saving | {"half-weights"} if halves_weights(setting) else saving)

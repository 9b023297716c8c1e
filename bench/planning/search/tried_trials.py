"""One model's trials, split by their outcomes so far. Pure.

In: the model's planned settings and the outcomes by trial id. Out: the trials that were measured, that
failed, and that are open. Every module of the search looks at trials through this view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.planning.plan import SettingPlan
from bench.records.trial import Failure, Measured, Measurement, Outcome, OutOfMemory, TimedOut, Trial

BACKOFF = 4  # the next micro-batch is a quarter, after an unpredicted out-of-memory or a timeout


class MeasuredTrial(NamedTuple):
    """A trial with its measurement, and the plan of its setting."""

    plan: SettingPlan
    trial: Trial
    measurement: Measurement


class FailedTrial(NamedTuple):
    """A trial that gave no measurement, and the plan of its setting."""

    plan: SettingPlan
    trial: Trial
    failure: Failure

    @property
    def was_slow(self) -> bool:
        """Whether the trial's time was over while it trained; with fewer samples a pass it may succeed."""
        return isinstance(self.failure, TimedOut) and self.failure.trained


class OpenTrial(NamedTuple):
    """A trial that was not tried yet, and the plan of its setting."""

    plan: SettingPlan
    trial: Trial


class TriedTrials:
    """The trials of some settings, by outcome, in the plan's order."""

    def __init__(self, plans: Sequence[SettingPlan], outcomes: Mapping[str, Outcome]) -> None:
        self.measured: list[MeasuredTrial] = []
        self.failed: list[FailedTrial] = []
        self.open: list[OpenTrial] = []
        for plan in plans:
            untried, failed = [], []
            for trial in plan.trials:
                outcome = outcomes.get(trial.id)
                if outcome is None:
                    untried.append(OpenTrial(plan, trial))
                elif isinstance(outcome, Measured):
                    self.measured.append(MeasuredTrial(plan, trial, outcome.measurement))
                else:
                    failed.append(FailedTrial(plan, trial, outcome))
            self.failed += failed
            too_large = min(map(_too_large, failed), default=math.inf)
            self.open += [each for each in untried if each.trial.micro_batch < too_large]


def _too_large(failed: FailedTrial) -> float:
    """Return the smallest micro-batch that cannot be measured in the setting of this failed trial."""
    size = failed.trial.micro_batch
    if isinstance(failed.failure, OutOfMemory):
        return size
    if failed.was_slow:
        return max(2, size // BACKOFF + 1)
    return 0  # the setting fails at every micro-batch

"""Results that follow from several trials of a run."""

from __future__ import annotations

import pytest

from bench.records.trial import Measured, Outcome, StepSample, Trial
from tests.builders import measurement, reduce_trials, trial

STEPS = tuple(StepSample(1 + i % 2, 0.1 * (1 + i % 2)) for i in range(20))


def ended(micro_batch: int, loss: float, *setting: str) -> tuple[Trial, str, Outcome]:
    """Make a trial whose losses cover two passes, as in a run."""
    found = measurement(STEPS, losses=(loss,), samples_per_loss=2 * micro_batch)
    return trial(setting=setting, micro_batch=micro_batch), " + ".join(setting), Measured(found)


def test_losses_are_held_against_naive_over_as_many_samples() -> None:
    """The comparison does not depend on the last micro-batch at which naive was measured."""
    trials = [
        ended(4, 2.0),
        ended(2, 1.0),
        ended(4, 2.2, "tf32"),
        ended(2, 1.3, "tf32"),
        ended(1, 1.0, "tf32"),
    ]
    found = [result.loss_difference for result in reduce_trials(trials, (), {})]
    assert found == [None, None, pytest.approx(0.1), pytest.approx(0.3), None]

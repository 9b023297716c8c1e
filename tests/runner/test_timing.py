"""Rules for the end of warm-up and timing, for the passes of a timed step, and for untimed work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.base.strict_json import canonical_json, to_json
from bench.bundle.tar_format import MAX_LINE_BYTES
from bench.records.estimate import step_interval
from bench.records.loss_curve import loss_samples
from bench.records.trial import Measured, StepSample, Timing
from bench.runner.trial.stopping_rules import (
    MAX_SAMPLES,
    accumulation_counts,
    evaluates_rarely,
    is_enough,
    is_steady,
)
from bench.training.models import known_models
from tests.builders import measurement

TIMING = Timing(target_percent=1.0, measure_seconds=12.0, warmup_seconds=8.0)


def test_warm_up_ends_when_three_steps_equal_the_three_before() -> None:
    assert is_steady([9.0, 1.0, 1.0, 1.0, 1.01, 1.0, 1.0], TIMING)
    assert not is_steady([1.0] * 5, TIMING)
    assert not is_steady([1.2, 1.1, 1.1, 1.0, 1.0, 1.0], TIMING)


@pytest.mark.parametrize(
    ("name", "parameters", "samples"),
    [
        ("vit-l", 304e6, 64),
        ("pythia-1b", 1.01e9, 64),
        ("pythia-2.8b", 2.78e9, 16),
        ("pythia-6.9b", 6.86e9, 8),
        ("pythia-6.9b", 200e9, 1),
    ],
)
def test_a_loss_step_of_a_large_model_has_fewer_samples(name: str, parameters: float, samples: int) -> None:
    assert loss_samples(int(parameters), known_models()[name].recipe) == samples


@pytest.mark.parametrize(
    ("recipe", "pass_seconds", "update_seconds", "counts"),
    [
        (1, 0.1, 0.0, (1,)),
        (64, 0.1, 0.01, (1, 24)),  # a fifth of the time for one step at the high count
        (4, 0.1, 0.01, (1, 4)),  # never more than in the recipe
        (64, 1.9, 0.01, (1, 3)),  # half of the error of a step is in each pass
        (64, 30.0, 0.01, (1, 2)),  # expensive, but a line needs two points
        (256, 0.6, 3.7, (1, 12)),  # a noisy update on the host takes seconds: passes take twice its time
        (256, 0.6, 60.0, (1, 20)),  # but never beyond the measuring time
    ],
)
def test_the_number_of_passes_per_timed_step(
    recipe: int, pass_seconds: float, update_seconds: float, counts: tuple[int, ...]
) -> None:
    assert accumulation_counts(recipe, pass_seconds, update_seconds, TIMING) == counts


@pytest.mark.parametrize(
    ("recipe", "pass_seconds", "counts"),
    [
        (1, 0.1, (1,)),
        (2, 0.1, (1, 2)),  # the recipe's own count needs no line
        (3, 0.1, (2, 3)),
        (64, 0.1, (2, 25)),  # as far apart as if the low count were one
        (64, 1.9, (2, 4)),
        (64, 30.0, (2, 3)),  # at any cost, because a line needs two points
    ],
)
def test_the_low_count_is_two_if_a_single_pass_lacks_a_cost(
    recipe: int, pass_seconds: float, counts: tuple[int, ...]
) -> None:
    assert accumulation_counts(recipe, pass_seconds, 0.01, TIMING, even_from=2) == counts


def test_a_cost_that_occurs_once_per_step_is_counted_once() -> None:
    """Under FSDP2 with offloading, sums take 0.5 s, and all but the last are hidden by a forward pass."""

    def step(passes: int) -> StepSample:
        return StepSample(passes, 3.0 + 2.0 * passes + (0.5 if passes > 1 else 0.0))

    counts = accumulation_counts(64, 2.0, 3.0, TIMING, even_from=2)
    found = step_interval([step(count) for count in counts] * 3, 64)
    assert found is not None
    assert found.value == pytest.approx(step(64).seconds)


def test_timing_ends_with_a_narrow_interval_after_five_rounds_or_with_the_time_after_three() -> None:
    rounds = [StepSample(1, 1.0), StepSample(2, 2.0)]
    assert not is_enough(rounds * 4, 8, 1.0, TIMING)
    assert is_enough(rounds * 5, 8, 1.0, TIMING)
    wide = [StepSample(1, 1.0), StepSample(2, 2.0), StepSample(1, 1.5), StepSample(2, 2.5)]
    assert not is_enough(wide * 3, 8, 11.0, TIMING)
    assert is_enough(wide * 3, 8, 13.0, TIMING)
    assert not is_enough(wide, 8, 13.0, TIMING)


def test_noisy_updates_get_more_time_and_are_then_given_up() -> None:
    hidden = [StepSample(1, 2.05), StepSample(3, 1.95)]
    assert not is_enough([], 512, 99.0, TIMING)
    assert not is_enough(hidden * 5, 512, 11.0, TIMING)
    assert not is_enough(hidden * 5, 512, 13.0, TIMING)
    assert is_enough(hidden * 20, 512, 48.0, TIMING)


def test_the_number_of_samples_is_limited_by_the_line_length_of_a_bundle() -> None:
    patient = replace(TIMING, target_percent=0.001, measure_seconds=1e6)
    steps = [StepSample(1, 0.0101234567890123 + 0.001 * (i % 7)) for i in range(MAX_SAMPLES)]
    assert not is_enough(steps[:1000], 1, 10.0, patient)
    assert is_enough(steps, 1, 1000.0, patient)
    line = canonical_json(to_json(Measured(measurement(steps))))
    assert len(line) < 0.5 * MAX_LINE_BYTES, "and as much again of warm-up"


def test_an_evaluation_is_timed_only_if_it_matters() -> None:
    small, large = (known_models()[name].recipe for name in ("pythia-160m", "pythia-6.9b"))
    assert evaluates_rarely(small)
    assert not evaluates_rarely(large)  # evaluated 40 times as often
    assert not evaluates_rarely(replace(small, eval_samples=None))
    assert not evaluates_rarely(known_models()["vit-l"].recipe)

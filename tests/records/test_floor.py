"""A floor is the least time of a step's computations, and is held to the step that it belongs to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bench.records.estimate import Interval
from bench.records.floor import MAX_SHARE_OF_STEP, Floor, share_of_floor, why_no_floor
from bench.records.loss_curve import LOSS_FLOPS, LOSS_SAMPLES, loss_passes, loss_samples
from tests.builders import ESTIMATE, RECIPE

FLOOR = Floor(5, 0.4, 0.0, 0.1, 0.0)


def test_a_floor_adds_up_the_kinds_of_computation_that_a_model_has() -> None:
    assert FLOOR.parts == {"products": 0.4, "attention": 0.1}
    assert Floor(1, 0.0, 1.0, 0.0, 2.0).parts == {"convolutions": 1.0, "scans": 2.0}
    assert (FLOOR.pass_seconds, FLOOR.measured_seconds) == (0.5, 2.5)


def test_the_share_of_a_step_counts_all_of_its_passes() -> None:
    assert share_of_floor(FLOOR, 3, ESTIMATE) == 0.75  # of two seconds


NO_TIME = "its floor has no passes or no time"
ODD = "its floor has a time that no computation takes"
TIMES = ("products_seconds", "convolutions_seconds", "attention_seconds", "scans_seconds")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"passes": 1}, None),
        ({"passes": 0}, NO_TIME),
        ({"products_seconds": 0.0, "attention_seconds": 0.0}, NO_TIME),
        *(({name: odd}, ODD) for name in TIMES for odd in (-0.1, math.inf, math.nan)),
        ({"products_seconds": 2.9}, None),  # as much as half more than the step
        ({"products_seconds": 2.92}, "its floor takes 151% of the time of its step"),
    ],
)
def test_a_floor_has_passes_that_fit_into_its_step(changes: dict[str, Any], why: str | None) -> None:
    assert why_no_floor(replace(FLOOR, **changes), 1, ESTIMATE) == why


def test_a_floor_at_its_limit_is_possible_and_one_without_a_figure_is_not() -> None:
    assert MAX_SHARE_OF_STEP == 1.5
    assert why_no_floor(Floor(1, 3.0, 0.0, 0.0, 0.0), 1, ESTIMATE) is None
    senseless = replace(ESTIMATE, step_seconds=Interval(math.nan, 0.0))
    assert why_no_floor(FLOOR, 1, senseless) == "its floor takes nan% of the time of its step"
    assert why_no_floor(FLOOR, 1, None) == "it has a floor, but no figure to compare the floor with"


@pytest.mark.parametrize(
    ("parameters", "samples"),
    [(0.5, 64), (1, 64), (1.01, 32), (2, 32), (2.01, 16), (3, 16), (64, 1), (1000, 1)],
)
def test_a_step_of_the_loss_curve_has_a_power_of_two_of_samples_and_at_most_64(
    parameters: float, samples: int
) -> None:
    """A model of 1e15 / (64 * 6 * 16) parameters is the largest that computes 64 samples of 16 tokens."""
    assert (LOSS_SAMPLES, LOSS_FLOPS) == (64, 1e15)
    assert loss_samples(int(parameters * 1e15 / (64 * 6 * 16)), RECIPE) == samples


@pytest.mark.parametrize(
    ("at_once", "accumulation", "passes"), [(16, 9, 4), (16, 3, 3), (64, 9, 1), (100, 9, 1), (1, 999, 64)]
)
def test_a_step_of_the_loss_curve_has_as_many_passes_as_its_samples_need(
    at_once: int, accumulation: int, passes: int
) -> None:
    assert loss_passes(1000, RECIPE, at_once, accumulation) == passes

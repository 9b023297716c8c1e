"""Estimates of days from samples: the line through two accumulation counts, its interval, its limits."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records.estimate import (
    BETWEEN_PROCESSES,
    SECONDS_A_DAY,
    TO_SIGMA,
    Interval,
    ceiling_of,
    ceiling_precisions,
    ceiling_rate,
    estimate,
    loss_difference,
    overhead_seconds,
    pass_and_update,
    quantile95,
    step_interval,
)
from bench.records.products import Products
from bench.records.trial import Ceiling, StepSample
from bench.training.models import Flops
from tests.builders import measurement, trial


def steps(*pairs: tuple[int, float]) -> tuple[StepSample, ...]:
    return tuple(StepSample(accumulation, seconds) for accumulation, seconds in pairs)


def test_the_slope_is_the_pass_and_the_intercept_is_the_update() -> None:
    samples = steps((1, 1.5), (5, 5.5), (1, 1.5), (5, 5.5))
    assert pass_and_update(samples) == (1.0, 0.5)
    interval = step_interval(samples, 64)
    assert interval is not None
    assert interval.value == pytest.approx(64.5)


def test_an_update_is_what_the_passes_of_a_step_leave() -> None:
    assert pass_and_update(steps((2, 1.5), (6, 3.5))) == (0.5, 0.5)
    assert pass_and_update(steps((6, 3.5), (3, 2.0), (3, 2.0))) == (0.5, 0.5)


def test_a_count_that_the_recipe_uses_is_not_extrapolated() -> None:
    # The line through counts 1 and 4 would give 4.6; the measurement at 4 gives 4.2.
    samples = steps((1, 1.0), (4, 4.1), (4, 4.3), (8, 9.4), (1, 1.0), (8, 9.4))
    interval = step_interval(samples, 4)
    assert interval is not None
    assert interval.value == pytest.approx(4.2)


def test_too_few_samples_give_no_interval() -> None:
    assert step_interval((), 4) is None
    assert step_interval(steps((1, 1.0), (2, 2.0)), 4) is None
    assert step_interval(steps((1, 1.0), (1, 1.0)), 4) is None


def test_more_passes_that_take_no_longer_give_no_interval() -> None:
    """Updates on the host may vary by more than a pass takes; then 512 passes would take negative time."""
    one, three = (2.00, 2.05, 2.02, 2.00, 2.05), (1.98, 1.96, 1.99, 1.98, 1.96)
    samples = [
        StepSample(n, s) for pair in zip(one, three, strict=True) for n, s in zip((1, 3), pair, strict=True)
    ]
    assert step_interval(samples, 512) is None
    assert pass_and_update(samples) == (None, None)
    measured = step_interval(samples, 3)
    assert measured is not None
    assert measured.value == pytest.approx(1.974)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(0)
    covered = 0
    for _ in range(1000):
        samples = steps(
            *((count, 0.5 + 0.1 * count + generator.gauss(0, 0.01)) for count in (1, 8) for _ in range(6))
        )
        interval = step_interval(samples, 32)
        assert interval is not None
        covered += abs(interval.value - 3.7) <= interval.half_width
    assert 930 <= covered <= 970


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.706), (10, 2.228), (40, 2.0211), (120, 1.9799), (1e9, 1.95996)]
)
def test_quantiles_of_student_t(degrees: float, value: float) -> None:
    assert quantile95(degrees) == pytest.approx(value, rel=2e-4)


@pytest.mark.parametrize("degrees", [*range(1, 31), 29.5])
def test_student_t_lies_within_each_quantile_in_95_of_100_cases(degrees: float) -> None:
    assert share_of_student_t_within(quantile95(degrees), degrees) == pytest.approx(0.95, abs=1e-4)


def share_of_student_t_within(limit: float, degrees: float) -> float:
    """Integrate the density; at t = sqrt(degrees) * tan(angle) it is a power of the cosine."""

    def integral(end: float) -> float:
        width = end / 2000
        return width * math.fsum(math.cos((i + 0.5) * width) ** (degrees - 1) for i in range(2000))

    return integral(math.atan(limit / math.sqrt(degrees))) / integral(math.pi / 2)


@given(
    seconds=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=20),
    factor=st.floats(0.1, 10),
)
def test_a_machine_twice_as_slow_takes_twice_the_days(seconds: list[float], factor: float) -> None:
    before = estimate(trial(), measurement([StepSample(2, s) for s in seconds]), Flops(1), ())
    after = estimate(trial(), measurement([StepSample(2, s * factor) for s in seconds]), Flops(1), ())
    assert before is not None
    assert after is not None
    assert after.days.value == pytest.approx(before.days.value * factor)
    assert after.days.half_width == pytest.approx(before.days.half_width * factor, rel=1e-6, abs=1e-9)


def test_saving_logging_and_evaluating_are_amortised_by_the_recipe() -> None:
    one = trial()
    recipe = dataclasses.replace(
        one.model.recipe, log_every_steps=10, save_every_steps=100, eval_every_steps=50, eval_samples=20
    )
    busy = dataclasses.replace(one, model=dataclasses.replace(one.model, recipe=recipe))
    found = estimate(
        busy,
        measurement(
            [StepSample(2, 1.0)] * 4, log_seconds=0.1, save_seconds=50.0, eval_seconds_per_sample=0.5
        ),
        Flops(1),
        (),
    )
    assert found is not None
    assert found.overhead_seconds == pytest.approx(0.1 / 10 + 50 / 100 + 0.5 * 20 / 50)
    assert found.days.value == pytest.approx((1 + found.overhead_seconds) * recipe.steps / 86_400)


@pytest.mark.parametrize("how_often", [None, 0])
@pytest.mark.parametrize(
    ("never", "seconds_left"),
    [
        ("log_every_steps", 0.5 + 0.2),
        ("save_every_steps", 0.01 + 0.2),
        ("eval_every_steps", 0.01 + 0.5),
        ("eval_samples", 0.01 + 0.5),
    ],
)
def test_what_the_recipe_never_does_takes_no_time(
    never: str, seconds_left: float, how_often: int | None
) -> None:
    often = {"log_every_steps": 10, "save_every_steps": 100, "eval_every_steps": 50, "eval_samples": 20}
    recipe = dataclasses.replace(trial().model.recipe, **{**often, never: how_often})
    timed = measurement([], log_seconds=0.1, save_seconds=50.0, eval_seconds_per_sample=0.5)
    found = overhead_seconds(timed, dataclasses.replace(trial().model, recipe=recipe))
    assert found == pytest.approx(seconds_left)


def test_without_a_measured_evaluation_none_is_added() -> None:
    recipe = dataclasses.replace(
        trial().model.recipe, log_every_steps=10, eval_every_steps=50, eval_samples=20
    )
    timed = measurement([], log_seconds=0.1, eval_seconds_per_sample=None)
    found = overhead_seconds(timed, dataclasses.replace(trial().model, recipe=recipe))
    assert found == pytest.approx(0.01)


def test_products_in_two_precisions_have_each_the_rate_of_their_own() -> None:
    recipe = dataclasses.replace(trial().model.recipe, precision="fp8")
    one = dataclasses.replace(trial(), model=dataclasses.replace(trial().model, recipe=recipe))
    fast, slow = (
        Ceiling(f"matmul-{name}", 0, "FLOP/s", work, (1.0,)) for name, work in (("fp8", 2000), ("bf16", 1000))
    )
    products = [
        Products("products", "fp8", 1000, 2000),
        Products("products", "bf16", 0, 1000),
        Products("scans", "fp32", 9000, 9000),  # scans are no products
    ]
    assert ceiling_of(one, [fast, slow], products) == pytest.approx(4000 / (3000 / 2000 + 1000 / 1000))
    assert ceiling_of(one, [fast, slow]) == 2000
    assert ceiling_of(one, [slow], products) == 1000
    assert ceiling_of(one, [fast], products) == 2000
    assert ceiling_of(one, [slow], products[-1:]) == 1000  # one rate needs no products to weigh it by
    assert ceiling_of(one, [fast, slow], ()) == 2000
    assert ceiling_of(one, [], products) is None
    faster = dataclasses.replace(slow, work=3000)  # as on a CPU
    assert ceiling_of(one, [fast, faster], products) == pytest.approx(3000)
    other = [*products[:2], Products("attention", "fp32", 1000, 0)]
    assert ceiling_of(one, [fast, slow], other) == pytest.approx(5000 / (1.5 + 1 + 0.5))


def test_more_arithmetic_than_the_machine_can_do_is_implausible() -> None:
    ceiling = (Ceiling("matmul-fp32", 0, "FLOP/s", 1000, (2.0, 1.0)),)
    slow = estimate(trial(), measurement([StepSample(2, 1.0)] * 3), Flops(41), ceiling)  # 3 * 41 * 8 = 984
    fast = estimate(trial(), measurement([StepSample(2, 1.0)] * 3), Flops(42), ceiling)  # 1008
    assert slow is not None
    assert fast is not None
    assert (slow.plausible, fast.plausible) == (True, False)
    assert slow.utilisation == pytest.approx(0.984)
    longer = estimate(trial(), measurement([StepSample(2, 2.0)] * 3), Flops(41), ceiling)
    assert longer is not None
    assert (longer.flops_per_second, longer.ceiling_flops_per_second) == (3 * 41 * 8 / 2, 1000)


@given(
    accumulation=st.integers(1, 64),
    timed=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-6, 1e6)), min_size=2, max_size=20),
)
def test_a_step_from_fewer_passes_than_the_recipes_always_takes_time(
    accumulation: int, timed: list[tuple[int, float]]
) -> None:
    interval = step_interval(steps(*((min(n, accumulation), s) for n, s in timed)), accumulation)
    assert interval is None or interval.value > 0


def test_a_step_that_takes_no_time_is_not_plausible() -> None:
    """The line through counts above the recipe's is negative at the recipe's, where it rises steeply."""
    steep = estimate(trial(), measurement(steps(*((3, 0.1), (4, 9.0)) * 3)), Flops(1), ())
    assert steep is not None
    assert steep.step_seconds.value < 0
    assert (steep.positive, steep.plausible) == (False, False)


def test_each_device_counts_with_its_best_and_only_those_in_use() -> None:
    ceilings = [
        Ceiling("matmul-bf16", device, "FLOP/s", work, (1.0,))
        for device, work in [(0, 10), (0, 12), (1, 20), (1, 5)]
    ]
    assert ceiling_rate(ceilings, "matmul-bf16", 2) == 32
    assert ceiling_rate(ceilings, "matmul-bf16", 1) == 20
    assert ceiling_rate(ceilings, "matmul-fp32", 1) is None


def test_losses_are_compared_only_over_the_same_samples() -> None:
    naive = measurement([], losses=(2.0, 1.0))
    assert loss_difference(measurement([], losses=(2.02, 1.0)), naive) == pytest.approx(0.01)
    assert loss_difference(measurement([], losses=(2.0, 1.0), samples_per_loss=3), naive) is None


def test_an_interval_scales_and_shifts_and_has_two_ends() -> None:
    assert Interval(2.0, 0.5).scaled(2).shifted(1) == Interval(5.0, 1.0)
    assert Interval(2.0, 0.5).percent == 25
    assert (Interval(2.0, 0.5).low, Interval(2.0, 0.5).high) == (1.5, 2.5)
    assert math.isclose(Interval(4.0, 1.0).scaled(0.5).value, 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_seconds": Interval(0.0, 0.1)},
        {"days": Interval(-1e-9, 0.1)},
        {"units_per_second": 0.0},
        {"flops_per_second": -1.0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_each_figure_by_itself_must_be_above_zero(wrong: dict[str, Any]) -> None:
    found = estimate(trial(), measurement([StepSample(2, 1.0)] * 3), Flops(1), ())
    assert found is not None
    assert (found.positive, found.plausible) == (True, True)
    impossible = dataclasses.replace(found, **wrong)
    assert (impossible.positive, impossible.plausible) == (False, False)


def test_of_three_counts_the_lowest_and_the_highest_give_the_line() -> None:
    interval = step_interval(steps(*((1, 1.5), (3, 99.0), (5, 5.5)) * 2), 64)
    assert interval is not None
    assert interval.value == pytest.approx(64.5)


@pytest.mark.parametrize(
    ("precision", "setting", "bounding"),
    [
        ("fp8", (), ("fp8", "bf16")),
        ("bf16", (), ("bf16",)),
        ("fp32", (), ("fp32",)),
        ("fp32", ("tf32",), ("tf32",)),
        ("bf16", ("tf32",), ("bf16",)),
    ],
)
def test_the_products_that_bound_a_recipe(precision: Any, setting: tuple[str, ...], bounding: object) -> None:
    recipe = dataclasses.replace(trial().model.recipe, precision=precision)
    assert ceiling_precisions(dataclasses.replace(trial().model, recipe=recipe), setting) == bounding


# --- in digits ---------------------------------------------------------------------------------------------


def test_constants_of_time_and_spread() -> None:
    assert (SECONDS_A_DAY, BETWEEN_PROCESSES) == (86_400, 0.005)
    assert Interval(1.0, 0.0).widened(TO_SIGMA) == Interval(1.0, 1.0)
    assert round(1 / TO_SIGMA, 9) == 1.96


def test_a_spread_between_processes_widens_an_interval_as_a_second_error() -> None:
    """A standard deviation of 1% of 200 is 2, of which a 95% interval has 1.96: hypot(3, 3.92) = 4.9362."""
    assert Interval(200.0, 3.0).widened(0.01) == Interval(200.0, pytest.approx(4.9362334))
    assert Interval(200.0, 0.0).of_another_process == Interval(200.0, pytest.approx(0.005 * 1.96 * 200))


def test_the_interval_of_a_measured_count_is_student_s() -> None:
    """Two samples, 1 and 3: mean 2, variance 2, standard error 1, one degree of freedom."""
    assert step_interval(steps((4, 1.0), (4, 3.0)), 4) == Interval(2.0, pytest.approx(12.706))
    three = step_interval(steps((4, 1.0), (4, 2.0), (4, 3.0)), 4)
    assert three == Interval(2.0, pytest.approx(4.303 / math.sqrt(3)))


def test_the_interval_of_a_line_weighs_the_errors_of_both_counts() -> None:
    """At 3, the line through 1 and 2 is twice the mean at 2 less the mean at 1.

    The errors are 2 / 4 and 4 * 18 / 3, with 3 and 2 degrees of freedom, by Welch and Satterthwaite.
    """
    one, two = (1.0, 1.0, 3.0, 3.0), (7.0, 10.0, 13.0)
    found = step_interval(steps(*((1, s) for s in one), *((2, s) for s in two)), 3)
    first, second = (4 / 3) / 4, 4 * 9 / 3
    degrees = (first + second) ** 2 / (first**2 / 3 + second**2 / 2)
    half = quantile95(degrees) * math.sqrt(first + second)
    assert found == Interval(pytest.approx(2 * 10 - 2), pytest.approx(half))
    assert 2 < degrees < 2.2


def test_times_that_do_not_vary_have_no_error() -> None:
    assert step_interval(steps((4, 1.5), (4, 1.5)), 4) == Interval(1.5, 0.0)


def test_each_needed_count_has_two_samples_and_others_may_have_fewer() -> None:
    assert step_interval(steps((4, 1.5), (4, 1.5), (8, 3.0)), 4) is not None
    assert step_interval(steps((4, 1.5), (8, 3.0), (8, 3.0)), 4) is None
    assert step_interval(steps((1, 1.0), (1, 1.0), (2, 2.0)), 4) is None
    assert step_interval(steps((1, 1.0), (2, 2.0), (2, 2.0)), 4) is None
    assert step_interval(steps((1, 1.0), (1, 1.0), (2, 2.0), (2, 2.0)), 4) is not None


def test_passes_that_take_the_same_time_give_no_line() -> None:
    assert pass_and_update(steps((1, 2.0), (3, 2.0))) == (None, None)
    assert pass_and_update(steps((1, 2.0))) == (None, None)
    assert pass_and_update(steps((1, 2.0), (3, 2.5))) == (0.25, 1.75)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (0.5, 12.706), (1, 12.706), (1.25, 12.706 - 0.25 * (12.706 - 4.303)), (2, 4.303),
        (2.5, (4.303 + 3.182) / 2), (5, 2.571), (29.5, (2.045 + 2.042) / 2), (30, 2.042177), (31, 2.039427),
        (300, 1.967903),
    ],
)  # fmt: skip
def test_quantiles_between_whole_degrees_lie_on_a_line(degrees: float, quantile: float) -> None:
    assert quantile95(degrees) == pytest.approx(quantile, abs=2e-6)


def test_an_estimate_in_digits() -> None:
    """1000 steps of eight samples of 16 tokens each, of two seconds, and half a second of saving."""
    recipe = dataclasses.replace(trial().model.recipe, save_every_steps=10)
    one = dataclasses.replace(trial(), model=dataclasses.replace(trial().model, recipe=recipe))
    timed = measurement(steps((2, 1.0), (2, 3.0)), save_seconds=5.0, peak_bytes=77)
    ceilings = [Ceiling("matmul-fp32", 0, "FLOP/s", 1000, (1.0,))]
    found = estimate(one, timed, Flops(3), ceilings)
    assert found is not None
    assert (found.step_seconds, found.overhead_seconds) == (Interval(2.0, pytest.approx(12.706)), 0.5)
    assert (found.pass_seconds, found.update_seconds) == (None, None)
    assert found.units_per_second == pytest.approx(8 * 16 / 2.5)
    assert found.days == Interval(pytest.approx(2.5 * 1000 / 86_400), pytest.approx(12.706 * 1000 / 86_400))
    assert found.flops_per_second == pytest.approx(3 * 3 * 8 / 2.0)
    assert (found.ceiling_flops_per_second, found.peak_bytes) == (1000, 77)
    assert found.utilisation == pytest.approx(0.036)
    assert estimate(one, measurement(steps((2, 1.0))), Flops(3), ()) is None


def test_without_a_measured_limit_no_share_of_it_is_known() -> None:
    found = estimate(trial(), measurement(steps((2, 1.0), (2, 3.0))), Flops(3), ())
    assert found is not None and found.utilisation is None and found.plausible


def test_the_limit_itself_is_plausible() -> None:
    ceilings = [Ceiling("matmul-fp32", 0, "FLOP/s", 72, (1.0,))]
    found = estimate(trial(), measurement(steps((2, 1.0), (2, 1.0))), Flops(3), ceilings)
    assert found is not None
    assert (found.utilisation, found.plausible) == (1.0, True)


def test_losses_differ_by_the_largest_share_of_the_naive_one() -> None:
    naive = measurement([], losses=(2.0, -4.0, 0.0))
    assert loss_difference(measurement([], losses=(2.1, -4.4, 0.0)), naive) == pytest.approx(0.1)
    assert loss_difference(measurement([], losses=(2.1,)), naive) == pytest.approx(0.05)
    assert loss_difference(measurement([], losses=(2.0, -4.0, 1e-12)), naive) == pytest.approx(1.0)
    assert loss_difference(measurement([], losses=()), naive) is None

"""The decision whether gradients agree, from norms alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bench.records.gradients import (
    LEAST_SHARE,
    MOST_OF_A_PARAMETER,
    MOST_OF_ROUNDING,
    MOST_OF_WHOLE,
    MOST_WRONG,
    REFERENCES,
    GradientCheck,
    ParameterNorms,
    compare,
    undecided,
    why_no_check,
    why_not_checked,
)
from tests.builders import ESTIMATE


def norms(*differences: float, reference: float = 1.0) -> list[ParameterNorms]:
    """Return parameters of 100 elements with these differences."""
    return [ParameterNorms(f"layer.{i}", 100, reference, d) for i, d in enumerate(differences)]


def test_differences_are_shares_of_the_reference() -> None:
    check = compare((), norms(0.02, 0.08, 0.04, reference=2.0))
    assert (check.parameters, check.worst) == (3, "layer.1")
    assert check.worst_difference == pytest.approx(0.04)
    assert check.whole_difference == pytest.approx(math.hypot(0.01, 0.04, 0.02) / math.sqrt(3))
    assert check.agrees


@pytest.mark.parametrize("factor", [2.0, 0.0, -1.0, 200_000.0])
def test_one_parameter_whose_gradient_has_a_wrong_factor_is_enough(factor: float) -> None:
    check = compare((), norms(*[0.01] * 50, abs(factor - 1)))
    assert check.worst == "layer.50"
    assert check.worst_difference == pytest.approx(abs(factor - 1))
    assert not check.agrees


def test_all_parameters_a_little_wrong_are_wrong_together() -> None:
    assert compare((), norms(*[0.19] * 9)).agrees
    assert not compare((), norms(*[0.21] * 9)).agrees


def test_the_limits_themselves_agree() -> None:
    assert GradientCheck((), 9, MOST_OF_WHOLE, "a", MOST_OF_A_PARAMETER).agrees


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_does_not_agree(number: float) -> None:
    check = compare((), norms(0.01, number, 0.02))
    assert (check.worst, check.worst_difference, check.whole_difference) == ("layer.1", None, None)
    assert not check.agrees


def test_the_noise_of_a_gradient_that_is_zero_raises_no_alarm() -> None:
    noise = ParameterNorms("key.bias", 100, 1e-9, 0.3 * LEAST_SHARE)
    assert compare((), [*norms(0.01), noise]).agrees
    wrong = ParameterNorms("key.bias", 100, 1e-9, LEAST_SHARE)
    assert not compare((), [*norms(0.01), wrong]).agrees


def test_the_noise_that_is_tolerated_grows_with_the_number_of_elements() -> None:
    large, small = (ParameterNorms("key.bias", n, 0.0, 0.003) for n in (100, 1))
    assert compare((), [*norms(0.0), large]).agrees
    assert not compare((), [*norms(0.0), small]).agrees


def test_a_parameter_without_elements_or_without_any_gradient_agrees() -> None:
    empty, unused = ParameterNorms("empty", 0, 0.0, 0.0), ParameterNorms("unused", 100, 0.0, 0.0)
    assert compare((), [*norms(0.01), empty, unused]).agrees


@pytest.mark.parametrize("reference", [0.0, math.inf, math.nan])
def test_a_reference_without_gradients_says_nothing(reference: float) -> None:
    with pytest.raises(ValueError, match="the gradients of the unmodified model have the norm"):
        compare((), norms(0.0, reference=reference))


# Gradients that rounding decides


def of(whole: float | None, worst: float | None) -> GradientCheck:
    return GradientCheck((), 9, whole, "layer.1", worst)


def test_a_setting_is_wrong_if_rounding_changes_the_reference_little() -> None:
    most = of(MOST_OF_WHOLE, MOST_OF_A_PARAMETER)
    assert most.agrees
    assert undecided(of(1.0, 1.0), most) is None
    assert undecided(of(MOST_OF_ROUNDING * 0.2, 1.0), most) is None, "though it differs by no more than that"


@pytest.mark.parametrize("nudged", [of(0.25, 0.25), of(0.2, 0.6), of(None, None)], ids=str)
def test_a_setting_is_undecided_if_rounding_changes_the_reference_as_much(nudged: GradientCheck) -> None:
    assert undecided(of(MOST_OF_ROUNDING * 0.2, MOST_OF_ROUNDING * 0.25), nudged)


def test_a_setting_is_wrong_beyond_a_multiple_of_what_rounding_changes() -> None:
    nudged, most = of(0.25, 0.5), MOST_OF_ROUNDING
    assert undecided(of(most * 0.25, most * 0.5), nudged) == (
        "rounding decides them: the unmodified model's change by 25% if its weights do by a millionth"
    )
    assert undecided(of(most * 0.25 + 1e-9, most * 0.5), nudged) is None
    assert undecided(of(most * 0.25, most * 0.5 + 1e-9), nudged) is None


def test_a_gradient_that_is_not_finite_is_never_undecided() -> None:
    assert undecided(of(None, None), of(1.4, 1.4)) is None


@pytest.mark.parametrize(("whole", "worst"), [(0.1, None), (None, 0.1)])
def test_a_difference_that_is_not_finite_does_not_agree_and_is_never_undecided(
    whole: float | None, worst: float | None
) -> None:
    assert not of(whole, worst).agrees
    assert undecided(of(whole, worst), of(1.4, 1.4)) is None


def test_a_setting_is_undecided_if_rounding_makes_a_gradient_infinite() -> None:
    assert undecided(of(5.0, 9.0), of(None, None)) == (
        "rounding decides them: the unmodified model's change without limit if its weights do by a millionth"
    )


def test_the_limits_and_the_settings_that_may_be_the_reference() -> None:
    assert (MOST_OF_WHOLE, MOST_OF_A_PARAMETER, LEAST_SHARE, MOST_OF_ROUNDING, MOST_WRONG) == (
        0.2, 0.5, 0.03, 4.0, 3,
    )  # fmt: skip
    assert REFERENCES == ((), ("checkpointing",), ("kernels", "checkpointing"))


def test_small_gradients_are_compared_with_a_share_of_an_average_one_whatever_the_whole_is() -> None:
    noise = ParameterNorms("key.bias", 100, 1e-9, 0.3 * LEAST_SHARE * 8)
    assert compare((), [*norms(0.01, reference=8.0), noise]).agrees


# Whether a trial can have a check


@pytest.mark.parametrize(
    ("changes", "setting", "why"),
    [
        ({}, (), None),
        ({"reference": ("kernels", "checkpointing"), "parameters": 1}, ("kernels",), None),
        ({"reference": ("kernels",)}, (), "its gradients were compared with nothing"),
        ({"parameters": 0}, (), "its gradients were compared with nothing"),
        ({}, ("zero-2",), "it has a gradient check, but gradients are compared on one device, and zero-2"
         " divides them"),
        ({"whole_difference": 0.0, "worst_difference": 0.0}, (), None),
        ({"whole_difference": 0.5, "worst_difference": 0.5}, (), None),
        ({"whole_difference": 0.5004, "worst_difference": 0.5}, (), None),  # rounding
        ({"whole_difference": 0.5006, "worst_difference": 0.5}, (),
         "its gradients differ by more than the worst of them"),
        ({"whole_difference": None, "worst_difference": None}, (), None),
        ({"whole_difference": 0.5, "worst_difference": None}, (), None),
        ({"whole_difference": None, "worst_difference": 0.5}, (),
         "its gradients differ by more than the worst of them"),
        *(({"whole_difference": whole, "worst_difference": worst}, (),
           "its gradients have a difference that no gradients have")
          for odd in (-0.1, math.inf, math.nan) for whole, worst in ((odd, 0.5), (0.1, odd), (odd, odd))),
    ],
)  # fmt: skip
def test_a_check_is_of_gradients_that_one_device_can_have(
    changes: dict[str, Any], setting: tuple[str, ...], why: str | None
) -> None:
    check = replace(GradientCheck((), 9, 0.1, "layer.1", 0.2), **changes)
    assert why_no_check(check, setting, ESTIMATE) == why
    assert why_no_check(check, setting, None) == "it has a gradient check, but no figure"


def test_only_sharding_divides_gradients() -> None:
    assert why_not_checked(("kernels", "checkpointing")) is None
    assert why_not_checked(("fsdp-3",)) == "gradients are compared on one device, and fsdp-3 divides them"

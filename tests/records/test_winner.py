"""The fastest trial of a model, and the confidence in it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records.estimate import BETWEEN_PROCESSES, Interval
from bench.records.fastest import (
    ProcessSpread,
    confidence,
    fastest_with_confidence,
    process_spread,
    runner_up,
    without_figures,
)
from bench.records.gradients import GradientCheck
from bench.records.run_results import Fastest, Results, RunFacts, TrialResult
from bench.records.trial import Crashed, Measured, NodeFacts, Outcome, Skipped, StepSample, Timing, Trial
from tests.builders import MODEL, measurement, reduce_trials, trial


def results(*seconds: float | None) -> tuple[TrialResult, ...]:
    """Make one trial per value, each at its own micro-batch; None means crashed."""
    ended: list[tuple[Trial, str, Outcome]] = []
    for number, value in enumerate(seconds):
        steps = (
            [StepSample(n, n * value * jitter) for jitter in (0.999, 1.001) * 4 for n in (1, 2)]
            if value
            else []
        )
        outcome: Outcome = Measured(measurement(steps)) if steps else Crashed("no")
        ended.append((trial(seed=number), f"setting {number}", outcome))
    return reduce_trials(ended, (), {})


def test_the_winner_is_the_fastest_that_was_measured() -> None:
    found = fastest_with_confidence("test-model", made := results(0.3, None, 0.2, 0.5), undecided=2)
    assert (found.trial, found.undecided) == (made[2].id, 2)
    assert found.confidence is not None and found.confidence > 0.999


def test_without_a_measurement_there_is_none() -> None:
    found = fastest_with_confidence("test-model", results(None), undecided=3)
    assert (found.trial, found.confidence, found.undecided) == (None, None, 3)
    assert fastest_with_confidence("another", results(0.2), undecided=0).trial is None


def test_similar_trials_leave_less_confidence_than_different_ones() -> None:
    near = fastest_with_confidence("test-model", results(0.2, 0.2005), 0).confidence
    far = fastest_with_confidence("test-model", results(0.2, 0.23), 0).confidence
    assert near is not None and far is not None
    assert 0.5 < near < 0.97 < far


def measured_twice(*apart: float) -> tuple[TrialResult, ...]:
    """Make trials whose second process took longer than the first by the given ratio."""
    return tuple(
        replace(one, earlier=one.estimate and one.estimate.days.scaled(1 / (1 + by)))
        for one, by in zip(results(*(0.2 + 0.1 * n for n in range(len(apart)))), apart, strict=True)
    )


def test_processes_that_agree_change_nothing() -> None:
    assert process_spread(results(0.2, 0.3)) == ProcessSpread(0, 0.0, BETWEEN_PROCESSES)
    assert process_spread(measured_twice(0.001, -0.002, 0.0)).spread == BETWEEN_PROCESSES


def test_a_larger_spread_between_processes_leaves_less_confidence() -> None:
    told = process_spread(measured_twice(0.03, -0.02))
    assert told.trials == 2
    assert told.largest == pytest.approx(0.03, rel=0.05)
    assert BETWEEN_PROCESSES < told.spread < 0.025
    assert process_spread(measured_twice(*[0.03, -0.03] * 20)).spread == pytest.approx(
        0.03 / 2**0.5, rel=0.05
    )
    near = results(0.2, 0.203)
    calm = fastest_with_confidence("test-model", near, 0).confidence
    other_model = [replace(one, model="another") for one in measured_twice(0.03, -0.02)]
    unsteady = fastest_with_confidence("test-model", [*near, *other_model], 0).confidence
    assert calm is not None and unsteady is not None and unsteady < calm - 0.05


def test_imprecise_trials_say_little_about_the_spread_between_processes() -> None:
    """If one of two figures has an interval of 8%, a difference of 3% means nothing."""
    (one,) = measured_twice(0.03)
    assert one.earlier
    vague = replace(one, earlier=Interval(one.earlier.value, 0.08 * one.earlier.value))
    assert process_spread([vague]).spread == BETWEEN_PROCESSES < process_spread([one]).spread


def test_a_single_trial_is_certain() -> None:
    assert confidence(Interval(1.0, 0.5), []) == 1.0


@given(
    st.floats(1e-3, 1e3),
    st.floats(0, 0.3),
    st.lists(st.tuples(st.floats(1, 3), st.floats(0, 0.3)), max_size=6),
)
def test_confidence_is_a_probability_and_falls_with_every_rival(
    best: float, width: float, others: list[tuple[float, float]]
) -> None:
    rivals = [Interval(best * factor, best * wide) for factor, wide in others]
    chances = [confidence(Interval(best, best * width), rivals[:count]) for count in range(len(rivals) + 1)]
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)
    assert all(chance >= 0.5 ** len(rivals) for chance in chances)  # none of them is faster than the best


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_unit_does_not_matter(factor: float) -> None:
    best, other = Interval(1.0, 0.02), Interval(1.01, 0.03)
    assert confidence(best.scaled(factor), [other.scaled(factor)]) == pytest.approx(confidence(best, [other]))


def made_twice(*pairs: tuple[float, float]) -> list[TrialResult]:
    """Make trials that two processes measured exactly, with the days of each."""
    return [
        replace(one, earlier=Interval(first, 0.0), estimate=replace(one.estimate, days=Interval(second, 0.0)))
        for one, (first, second) in zip(results(*[0.2] * len(pairs)), pairs, strict=True)
        if one.estimate
    ]


def test_the_spread_weighs_what_other_runs_showed_like_three_pairs() -> None:
    """Half of a squared difference is the variance of one process; 0.5% is known from other runs."""
    found = process_spread(made_twice((1.0, math.exp(0.03)), (1.0, math.exp(-0.02))))
    assert found.spread**2 == pytest.approx((3 * 0.005**2 + 0.03**2 / 2 + 0.02**2 / 2) / 5)


def implausible(one: TrialResult) -> TrialResult:
    """Imply more operations than the machine reached."""
    assert one.estimate
    return replace(one, estimate=replace(one.estimate, ceiling_flops_per_second=1e-9))


def test_an_implausible_trial_is_no_rival() -> None:
    fast, slow, impossible = results(0.2, 0.3, 0.2001)
    alone = fastest_with_confidence("test-model", [fast, slow], 0)
    assert fastest_with_confidence("test-model", [fast, slow, implausible(impossible)], 0) == alone
    assert runner_up("test-model", [fast, slow, impossible], ()) is not None
    assert runner_up("test-model", [fast, slow, implausible(impossible)], ()) is None


def test_an_implausible_trial_says_nothing_about_the_spread_between_processes() -> None:
    calm, unsteady = made_twice((1.0, 1.0), (1.0, 1.05))
    assert process_spread([calm, implausible(unsteady)]) == process_spread([calm])


@pytest.mark.parametrize("rivals", [1, 2, 3])
def test_every_rival_lowers_the_confidence_by_its_own_chance(rivals: int) -> None:
    """A rival that is 1% faster is as likely faster as slower than what counts as equal."""
    assert confidence(Interval(1.0, 0.0), [Interval(0.99, 0.0)] * rivals) == pytest.approx(0.5**rivals)


def test_a_runner_up_is_named_with_the_confidence_of_this_machine() -> None:
    """Processes of an unsteady machine differ more, so the same lead is less certain."""
    near = results(0.2, 0.203)
    other_model = [replace(one, model="another") for one in made_twice((1.0, 1.06), (1.0, 1.05))]
    assert runner_up("test-model", near, ()) is None
    doubt = runner_up("test-model", [*near, *other_model], ())
    assert doubt is not None
    assert doubt == (fastest_with_confidence("test-model", [*near, *other_model], 0).confidence, near[1])


@pytest.mark.parametrize(("seconds", "named"), [(0.2003, True), (0.2004, False)])
def test_a_runner_up_is_named_below_a_confidence_of_95_percent(seconds: float, named: bool) -> None:
    """The confidence against these two rivals is 94.8% and 95.5%."""
    assert (runner_up("test-model", results(0.2, seconds), ()) is not None) == named


# --- why a model has no figure --------------------------------------------------------------------------


def run_of(
    trials: tuple[TrialResult, ...], skipped: tuple[Skipped, ...] = (), undecided: int | None = None
) -> Results:
    """Make a run of two models: the second was measured, `undecided` settings of the first were not."""
    measured = tuple(replace(one, model="second") for one in results(0.2))
    models = (MODEL, replace(MODEL, name="second"))
    winners = () if undecided is None else (Fastest("test-model", None, undecided, None),)
    return Results(
        "0", "", RunFacts("a", 0.0, 1.0, True, None), NodeFacts("a CPU", 1, 1, "Linux", "6", "3.12"), models,
        0, Timing(), None, (), (*trials, *measured), skipped, (*winners, Fastest("second", "x", 3, 1.0)),
    )  # fmt: skip


def why(run: Results) -> str:
    """Return why the first model has no figure; the second one has one."""
    found = without_figures(run)
    assert list(found) == ["test-model"]
    return found["test-model"]


def test_models_with_a_figure_need_no_reason() -> None:
    assert without_figures(run_of(results(0.2, None))) == {}


def test_a_model_that_the_run_did_not_come_to() -> None:
    skipped = (Skipped("second", (), "naive", "does not fit"), Skipped("test-model", (), "naive", "no GPU"))
    assert why(run_of((), skipped, undecided=2)) == "none of its settings was measured before the run ended"
    assert why(run_of((), skipped, undecided=0)) == why(run_of((), skipped)) == "no GPU"
    assert why(run_of((), skipped[:1])) == "nothing was tried"


def test_a_model_without_a_figure_names_what_became_of_its_last_trial() -> None:
    crashed, impossible = results(None), implausible(results(0.2)[0])
    vague = replace(impossible, estimate=None)
    assert why(run_of((impossible, *crashed), undecided=2)) == "crashed: no"
    assert why(run_of((impossible, vague))) == "too few samples"
    assert why(run_of((*crashed, impossible))) == "implausible"
    wrong = replace(results(0.2)[0], gradient_check=GradientCheck((), 1, 0.5, "a", 0.5))
    assert why(run_of((wrong,))) == "wrong gradients"
    assert why(run_of((wrong, replace(impossible, setting=("tf32",))))) == "implausible"


def test_a_trial_whose_second_process_gave_no_figure_says_nothing_about_processes() -> None:
    calm, failed = made_twice((1.0, 1.0), (1.0, 1.05))
    assert process_spread([calm, replace(failed, estimate=None)]) == process_spread([calm])


def test_what_two_intervals_explain_is_no_spread_between_processes() -> None:
    """A half-width of 1.96% is a standard deviation of 1%."""
    (one,) = made_twice((1.0, math.exp(0.05)))
    vague = replace(one, earlier=Interval(1.0, 0.0196))
    expected = (3 * 0.005**2 + (0.05**2 - 0.01**2) / 2) / 4
    assert process_spread([vague]).spread ** 2 == pytest.approx(expected)


def test_the_runner_up_is_the_rival_whose_interval_ends_first() -> None:
    """A rival that may be fast and may be slow says less than one that is surely nearly as fast."""
    best, unsure, near = (
        replace(one, estimate=replace(one.estimate, days=days))
        for one, days in zip(
            results(0.2, 0.3, 0.4),
            (Interval(10.0, 0.5), Interval(10.2, 2.0), Interval(10.4, 0.5)),
            strict=True,
        )
        if one.estimate is not None
    )
    for trials in ((best, unsure, near), (near, unsure, best)):
        found = runner_up("test-model", trials, ())
        assert found is not None and found[1].id == near.id

"""The trial that a run measures next, and those it measures again, for made-up plans and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.planning.plan import Plan, SettingPlan
from bench.planning.search import next_trial as search
from bench.planning.search.next_trial import (
    fastest,
    finalist,
    longer,
    next_trial,
    open_trial,
    remaining,
    settings_in_order,
    step_seconds,
    tally,
    undecided,
    unproven,
)
from bench.records.trial import Crashed, Measured, Outcome, OutOfMemory, StepSample, Timing, Trial
from bench.training.models import known_models
from tests.builders import measurement
from tests.targets import H200

PYTHIA = known_models()["pythia-1b"]
MEMORY = 100 << 30
FULL, CRASH = OutOfMemory("gpu", ""), Crashed("it fell over")


def setting(model: str, *methods: str, sizes: tuple[int, ...] = (16,), fits: bool = True) -> SettingPlan:
    trials = tuple(Trial(replace(PYTHIA, name=model), methods, size, 1, 0, Timing()) for size in sizes)
    need = 1 << 30 if fits else 2 * MEMORY
    return SettingPlan(" + ".join(methods), trials, dict.fromkeys(sizes, need), 1 << 30, None)


def plan_of(*cells: SettingPlan, guided: tuple[str, ...] = ()) -> Plan:
    return Plan("sha256:0", H200, cells, (), MEMORY, frozenset(guided))


def took(trial: Trial, seconds: float, spread: float = 0.0, **more: float) -> Measured:
    """Return the measurement of steps that take `seconds`, some of them more or less by a share of it."""
    steps = [StepSample(trial.accumulation, seconds * (1 + part)) for part in (-spread, 0.0, spread)]
    return Measured(measurement(steps, **more))


def ended(plan: SettingPlan, outcomes: Mapping[int, Outcome | float]) -> dict[str, Outcome]:
    """Return the outcomes of a setting's trials by micro-batch; a number is the seconds of a step."""
    return {
        trial.id: took(trial, outcome) if isinstance(outcome, float | int) else outcome
        for trial in plan.trials
        if (outcome := outcomes.get(trial.micro_batch)) is not None
    }


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [
        ({}, 16),
        ({16: FULL}, 8),
        ({16: FULL, 8: FULL, 4: FULL}, None),
        ({16: CRASH}, None),
        ({16: Measured(measurement([StepSample(64, 1.0)]))}, None),  # too few steps for an interval
        ({16: 100.0}, 8),
        ({16: 100.0, 8: FULL}, 4),
        ({16: 100.0, 8: 99.0}, 4),  # a percent faster
        ({16: 100.0, 8: 99.01}, None),
        ({16: 100.0, 8: 90.0, 4: 89.2}, None),  # the last one counts, not the first
        ({16: 100.0, 8: 90.0, 4: 80.0}, None),
    ],
)
def test_a_listed_setting_goes_on_to_smaller_micro_batches_while_that_pays(
    outcomes: Mapping[int, Outcome | float], size: int | None
) -> None:
    listed = setting("a", sizes=(16, 8, 4))
    found = open_trial(listed, ended(listed, outcomes))
    assert (found and found.micro_batch) == size


def test_a_trial_that_may_not_fit_waits_for_all_others() -> None:
    large, larger, small = (
        setting("a", fits=False),
        setting("b", fits=False),
        setting("c", "kernels", sizes=(16, 8)),
    )
    plan = plan_of(large, larger, small)
    known: dict[str, Outcome] = {}
    order = []
    while trial := next_trial(plan, known):
        order.append((trial.model.name, trial.micro_batch))
        known[trial.id] = took(trial, 1.0)
    assert order == [("c", 16), ("c", 8), ("a", 16), ("b", 16)]


def test_listed_models_come_first_then_the_guided_one_with_the_fewest_answers_then_failures() -> None:
    one, two = setting("one", sizes=(16, 8)), setting("two", sizes=(16, 8))
    listed = setting("listed", fits=False)
    plan = plan_of(one, two, listed, guided=("one", "two"))
    asked = []
    for known in (
        {},
        ended(listed, {16: 1.0}),
        ended(listed, {16: 1.0}) | ended(one, {16: FULL}),
        ended(listed, {16: 1.0}) | ended(one, {16: FULL}) | ended(two, {16: 1.0}),
        ended(listed, {16: 1.0}) | ended(one, {16: FULL, 8: FULL}) | ended(two, {16: 1.0}),
        ended(listed, {16: 1.0}) | ended(one, {16: FULL, 8: FULL}) | ended(two, {16: FULL, 8: FULL}),
    ):
        trial = next_trial(plan, known)
        asked.append((trial.model.name, trial.micro_batch) if trial else None)
    assert asked == [("listed", 16), ("one", 16), ("two", 16), ("one", 8), ("two", 8), None]


def test_settings_are_listed_as_planned_or_in_the_order_of_the_search() -> None:
    """The plan with passes that are not recorded is never tried while recorded ones work."""
    slow, spare, fast = (
        setting("a", "checkpointing"),
        setting("a", "kernels"),
        setting("a", "kernels", "cuda-graphs"),
    )
    other = setting("b", "compile")
    listed, guided = plan_of(slow, spare, fast, other), plan_of(slow, spare, fast, other, guided=("a",))
    assert settings_in_order(listed, "a") == [slow, spare, fast]
    assert settings_in_order(guided, "a") == [fast, slow, spare]
    assert settings_in_order(guided, "b") == [other]


def three(*taken: tuple[float, float], guided: bool = True) -> tuple[Plan, dict[str, Outcome], list[Trial]]:
    """Plan three settings that were measured with (seconds, spread) each."""
    cells = [setting("a", *methods) for methods in (("kernels",), ("gelu",), ("norms",))]
    trials = [cell.trials[0] for cell in cells]
    known: dict[str, Outcome] = {
        trial.id: took(trial, seconds, spread) for trial, (seconds, spread) in zip(trials, taken, strict=True)
    }
    return plan_of(*cells, guided=("a",) if guided else ()), known, trials


def test_of_the_fastest_and_its_rivals_that_with_the_widest_interval_is_measured_again() -> None:
    plan, known, (_, rival, best) = three((2.0, 0.05), (1.001, 0.02), (1.0, 0.01))
    assert finalist(plan, known, ()) == rival
    assert finalist(plan, known, (rival.id,)) == best
    assert finalist(plan, known, (rival.id, best.id)) is None, "the third is far slower"
    plan, known, (_, rival, best) = three((2.0, 0.05), (1.001, 0.01), (1.0, 0.02))
    assert finalist(plan, known, ()) == best


@pytest.mark.parametrize(
    "taken",
    [
        ((2.0, 0.001), (3.0, 0.001), (1.0, 0.02)),
        ((2.0, 0.02), (2.001, 0.02), (1.0, 0.02)),  # equals that are both far slower than the fastest
    ],
)
def test_nothing_is_measured_again_without_a_rival(taken: tuple[tuple[float, float], ...]) -> None:
    plan, known, _ = three(*taken)
    assert finalist(plan, known, ()) is None


def test_a_listed_model_is_neither_measured_again_nor_searched() -> None:
    plan, known, _ = three((2.0, 0.05), (1.001, 0.02), (1.0, 0.02), guided=False)
    assert finalist(plan, known, ()) is None
    untimed = setting("a", sizes=(16, 8))
    known = ended(untimed, {16: Measured(measurement([StepSample(64, 1.0)]))})
    assert next_trial(plan_of(untimed), known) is None
    assert next_trial(plan_of(untimed, guided=("a",)), known) == untimed.trials[1]


@pytest.mark.parametrize(("certain", "again"), [(0.9, False), (0.8999, True)])
def test_a_fastest_setting_is_measured_again_below_a_confidence_of_90_percent(
    monkeypatch: pytest.MonkeyPatch, certain: float, again: bool
) -> None:
    plan, known, _ = three((1.0, 0.02), (1.0, 0.02), (1.0, 0.02))
    monkeypatch.setattr(search, "confidence", lambda *_: certain)
    assert (finalist(plan, known, ()) is not None) == again


def test_a_second_measurement_takes_three_times_as_long_and_aims_three_times_as_close() -> None:
    first = Timing(target_percent=1.5, measure_seconds=20.0, warmup_seconds=7.0, loss_steps=2)
    assert longer(first) == Timing(0.5, 60.0, 7.0, 2)


def test_a_step_includes_its_share_of_saving() -> None:
    model = replace(PYTHIA, recipe=replace(PYTHIA.recipe, save_every_steps=10))
    trial = Trial(model, (), 16, 1, 0, Timing())
    assert step_seconds(trial, took(trial, 4.0, save_seconds=20.0)) == pytest.approx(6.0)
    assert step_seconds(trial, Measured(measurement([StepSample(64, 4.0)]))) is None, "too few steps"
    assert step_seconds(trial, CRASH) is None
    assert step_seconds(trial, None) is None


def test_the_fastest_of_each_model_in_turn_is_compared_with_real_training() -> None:
    one, other, two = (
        setting("one"),
        setting("one", "kernels"),
        setting("two"),
    )
    plan = plan_of(one, two, other)
    known = ended(one, {16: 2.0}) | ended(other, {16: 1.0}) | ended(two, {16: 0.5})
    (plain,), (kernels,), (second,) = one.trials, other.trials, two.trials
    assert (fastest(plan, known, "one"), fastest(plan, known, "two")) == (kernels, second)
    assert unproven(plan, known, ()) == kernels
    assert unproven(plan, known, (kernels.id,)) == second
    assert unproven(plan, known, (kernels.id, second.id)) is None
    del known[kernels.id]
    assert unproven(plan, known, (kernels.id,)) == plain
    too_few: dict[str, Outcome] = {second.id: Measured(measurement([StepSample(64, 1.0)]))}
    assert unproven(plan, too_few, ()) is None


def test_a_steady_trial_is_compared_with_real_training_before_a_faster_unsteady_one() -> None:
    """Comparisons rank the steady one: a proof of the other would be of a setting that nobody chooses."""
    plain, kernels = setting("a"), setting("a", "kernels")
    (steady,), (wild,) = plain.trials, kernels.trials
    known: dict[str, Outcome] = {steady.id: took(steady, 2.0), wild.id: took(wild, 1.0, spread=0.9)}
    assert fastest(plan_of(plain, kernels), known, "a") == steady
    del known[steady.id]
    assert fastest(plan_of(plain, kernels), known, "a") == wild


def test_undecided_settings_have_an_open_trial_or_may_yet_be_the_fastest_of_a_search() -> None:
    plain, slower = setting("a", sizes=(16, 8)), setting("a", "checkpointing", sizes=(16, 8))
    known = ended(plain, {16: 1.0, 8: 1.0})
    listed, guided = plan_of(plain, slower, setting("b")), plan_of(plain, slower, guided=("a",))
    assert (undecided(listed, {}, "a"), undecided(listed, known, "a")) == (2, 1)
    assert (undecided(guided, {}, "a"), undecided(guided, known, "a")) == (2, 1)
    assert (remaining(listed, known), tally(listed, known)) == (2, (1, 3, "settings"))
    assert (remaining(guided, {}), tally(guided, {})) == (2, (0, 1, "models"))
    known |= ended(slower, {16: 2.0, 8: 2.0})
    assert (remaining(guided, known), tally(guided, known)) == (0, (1, 1, "models"))
    recorded, spare = setting("a", "kernels", "cuda-graphs"), setting("a", "kernels")
    assert undecided(plan_of(recorded, spare), {}, "a") == 2
    assert undecided(plan_of(recorded, spare, guided=("a",)), {}, "a") == 1

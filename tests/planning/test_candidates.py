"""The order in which the search tries settings, and what failed trials rule out, for made-up outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.plan import DRIVER_BYTES, EXCEEDED_BY, SettingPlan
from bench.planning.search import candidates
from bench.planning.search.candidates import promising
from bench.planning.search.tried_trials import TriedTrials
from bench.records.trial import (
    Crashed,
    Failure,
    Measured,
    Outcome,
    OutOfMemory,
    StepSample,
    TimedOut,
    Timing,
    Trial,
)
from bench.training.models import known_models, parameters_of
from bench.training.setting import Setting
from tests.builders import measurement

PYTHIA = known_models()["pythia-1b"]  # 1,024 samples a step
MEMORY = 100 << 30
FULL, CRASH = OutOfMemory("gpu", ""), Crashed("it fell over")
STUCK, SLOW = TimedOut(300.0, "build"), TimedOut(300.0, "measure")


def planned(*setting: str, sizes: tuple[int, ...] = (16,)) -> SettingPlan:
    """Plan a setting whose trials surely fit."""
    trials = tuple(Trial(PYTHIA, setting, size, 1, 0, Timing()) for size in sizes)
    return SettingPlan(" + ".join(setting), trials, dict.fromkeys(sizes, 1 << 30), 1 << 30, None)


def first(plan: SettingPlan, outcome: Outcome) -> dict[str, Outcome]:
    """Return the outcome of a setting's first trial."""
    return {plan.trials[0].id: outcome}


def took(a_pass: float, update: float = 0.0) -> Measured:
    return Measured(measurement([StepSample(n, update + n * a_pass) for n in (1, 3)] * 5))


def order(plans: list[SettingPlan], known: dict[str, Outcome] | None = None) -> list[tuple[Setting, int]]:
    return [(trial.setting, trial.micro_batch) for trial in promising(plans, known or {}, MEMORY)]


def test_before_any_time_the_settings_go_by_their_believed_cost() -> None:
    from_cheap_to_dear: list[Setting] = [
        ("kernels", "gelu", "compile"),  # each kind of method that chooses kernels makes a step faster
        ("kernels", "gelu"),
        ("kernels",),
        (),
        ("fsdp-2",),
        ("zero-1",),
        ("zero-2",),
        ("fsdp-3",),
        ("checkpointing",),
        ("zero-3",),
        ("zero-1", "offload"),
        ("checkpointing", "zero-3"),
    ]
    found = order([planned(*setting) for setting in reversed(from_cheap_to_dear)])
    assert [setting for setting, _ in found] == from_cheap_to_dear


def test_before_any_time_a_pass_is_believed_to_cost_one_sample_more_than_it_has() -> None:
    found = order([planned(sizes=(1, 2, 4)), planned("checkpointing", sizes=(64,))])
    # 1 + 1/4 is less than 1.25 * (1 + 1/64), which is less than 1 + 1/2.
    assert found == [((), 4), (("checkpointing",), 64), ((), 2), ((), 1)]


@pytest.mark.parametrize(
    ("need", "least", "later"),
    [
        (int(0.85 * MEMORY), MEMORY, False),  # what is predicted counts, if anything is
        (int(0.85 * MEMORY) + 1, 0, True),
        (None, int(0.85 * MEMORY), False),
        (None, int(0.85 * MEMORY) + 1, True),
        (None, None, False),
    ],
)
def test_a_trial_that_may_not_fit_comes_after_a_dearer_one_that_does(
    need: int | None, least: int | None, later: bool
) -> None:
    tight = replace(planned(), needs={16: need}, least_bytes=least)
    assert order([tight, planned("checkpointing")])[0] == ((("checkpointing",), 16) if later else ((), 16))


def test_a_smaller_micro_batch_of_the_only_timed_setting_is_next() -> None:
    """A smaller micro-batch shows the overhead of a pass, which then bounds all other settings."""
    plain = planned(sizes=(64, 128, 32, 16))
    plans = [planned("kernels", "gelu", sizes=(64, 128, 32)), plain]
    found = order(plans, first(plain, took(1.0)))
    assert found[0] == ((), 32)
    assert {setting for setting, _ in found[1:4]} == {("kernels", "gelu")}


def test_an_update_on_the_host_makes_a_step_longer() -> None:
    """The update takes 0.4 s; with it, a step is expected to take 35.6 s, and 35.4 s under ZeRO-3."""
    plain = planned()
    plans = [plain, planned("zero-1", "offload"), planned("zero-3", sizes=(2,))]
    found = order(plans, first(plain, took(20 / 64)))
    assert found == [(("zero-3",), 2), (("zero-1", "offload"), 16)]


@pytest.mark.parametrize(("update", "left"), [(-0.01, False), (0.01, False), (0.5, True)])
def test_only_a_long_update_leaves_hope_that_casts_saved_pay_for_checkpointing(
    update: float, left: bool
) -> None:
    """A measured update below zero is noise, and counts as none."""
    plain, slower = planned(), planned("half-weights", "checkpointing")
    assert bool(order([plain, slower], first(plain, took(1.0, update)))) == left


@pytest.mark.parametrize(
    ("outcomes", "left"),
    [
        ({}, [64, 16, 8, 4, 2, 1]),
        ({16: FULL}, [8, 4, 2, 1]),
        ({64: FULL, 8: FULL}, [4, 2, 1]),
        ({16: SLOW}, [4, 2, 1]),  # a quarter of what was too slow
        ({64: SLOW, 16: FULL}, [8, 4, 2, 1]),
        ({16: CRASH}, []),
        ({16: STUCK}, []),
    ],
)
def test_a_failure_rules_out_micro_batches_of_its_own_setting_alone(
    outcomes: dict[int, Failure], left: list[int]
) -> None:
    failed, other = planned(sizes=(64, 16, 8, 4, 2, 1)), planned("kernels", sizes=(128,))
    known = {
        trial.id: outcomes[trial.micro_batch] for trial in failed.trials if trial.micro_batch in outcomes
    }
    tried = TriedTrials([failed, other], known)
    assert [e.trial.micro_batch for e in tried.open if e.plan is failed] == left
    assert [e.trial.micro_batch for e in tried.open if e.plan is other] == [128]


@pytest.mark.parametrize(
    ("failures", "left"),
    [
        ((CRASH,), True),
        ((CRASH, CRASH), False),
        ((STUCK,), False),
        ((FULL, FULL), True),
        ((SLOW, SLOW), True),
        ((CRASH, FULL), True),
        ((CRASH, SLOW), True),
    ],
)
def test_a_method_is_given_up_after_one_timeout_or_two_crashes_and_for_no_other_failure(
    failures: tuple[Failure, ...], left: bool
) -> None:
    plain, compiled, both = planned(), planned("compile"), planned("compile", "kernels")
    known = first(plain, took(1.0))
    for plan, failure in zip((compiled, both), failures, strict=False):
        known |= first(plan, failure)
    third = planned("compile", "gelu")
    found = order([plain, compiled, both, third], known)
    assert ((third.setting, 16) in found) == left


def test_a_method_that_once_worked_is_never_blamed() -> None:
    plain, compiled, crashed = planned(), planned("compile"), planned("compile", "kernels")
    known = first(plain, took(1.0)) | first(compiled, took(0.9)) | first(crashed, STUCK)
    found = order([plain, compiled, crashed, planned("compile", "gelu"), planned("kernels")], known)
    assert found == [(("compile", "gelu"), 16)]


@pytest.mark.parametrize("known", [False, True])
def test_a_setting_that_may_not_fit_is_tried_last(known: bool) -> None:
    """One of two settings almost fills the memory; the order holds before and after a first measured time."""
    most = round((MEMORY - DRIVER_BYTES) / (1 + EXCEEDED_BY))
    measured, other = planned("kernels"), replace(planned("kernels", "gelu"), needs={16: most - 1})
    outcomes = first(measured, took(1.0)) if known else {}
    for needed, last in ((most - 1, False), (most + 1, True)):
        fast = replace(planned("kernels", "compile"), needs={16: needed})
        found = [setting for setting, _ in order([measured, fast, other], outcomes)]
        assert (found.index(fast.setting) > found.index(other.setting)) == last


@pytest.mark.parametrize(
    ("size", "measured", "near"), [(40, 100, True), (39, 100, False), (99, 100, True), (100, 100, False),
                                   (150, 100, False)],
)  # fmt: skip
def test_a_micro_batch_from_four_tenths_of_the_measured_one_is_near(
    size: int, measured: int, near: bool
) -> None:
    trial = planned().trials[0]
    other = replace(trial, micro_batch=size)
    assert candidates._next_to(other, replace(trial, micro_batch=measured)) is near
    kernels = planned("kernels").trials[0]
    assert not candidates._next_to(other, replace(kernels, micro_batch=measured))


def test_a_crash_says_nothing_about_larger_micro_batches() -> None:
    failed, large = planned(), planned("kernels", sizes=(64,))
    plans = [failed, planned("checkpointing", sizes=(1,)), large]
    assert order(plans, first(failed, CRASH))[0] == (("kernels",), 64)
    assert order(plans, first(failed, SLOW))[0] == (("checkpointing",), 1)


def test_gradients_that_the_host_adds_up_take_a_believed_time_for_each_parameter() -> None:
    parameters = parameters_of(PYTHIA) or 0
    host = parameters * 0.45e-9
    offloaded = planned("fsdp-2", "offload").trials[0]
    assert candidates._with_host(0.9 * host, offloaded) == pytest.approx(host)
    assert candidates._with_host(1.1 * host, offloaded) == pytest.approx(1.1 * host)
    for other in (("fsdp-2",), ("zero-2", "offload")):
        assert candidates._with_host(0.1 * host, planned(*other).trials[0]) == pytest.approx(0.1 * host)

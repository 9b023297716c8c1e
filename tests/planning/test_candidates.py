"""The order in which the search tries settings, and what failed trials rule out, for made-up outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.plan import DRIVER_BYTES, EXCEEDED_BY, SettingPlan
from bench.planning.search import candidates
from bench.planning.search.candidates import promising
from bench.planning.search.lower_bounds import PassCost, TimedTrial
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
from bench.training.methods import UNRECORDABLE
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


@pytest.mark.parametrize(
    ("slow", "left"),
    [(20, [5, 4, 3, 2, 1]), (16, [4, 3, 2, 1]), (8, [2, 1]), (5, [1]), (4, [1]), (3, [1]), (2, [1]), (1, [])],
)
def test_after_a_slow_trial_a_quarter_of_its_samples_is_tried_and_at_least_one(
    slow: int, left: list[int]
) -> None:
    plan = planned(sizes=(20, 16, 8, 5, 4, 3, 2, 1))
    (trial,) = (trial for trial in plan.trials if trial.micro_batch == slow)
    assert [each.trial.micro_batch for each in TriedTrials([plan], {trial.id: SLOW}).open] == left


def unpredicted(*setting: str, sizes: tuple[int, ...] = (16,), least: int | None = 1 << 30) -> SettingPlan:
    """Plan a setting of which only the memory before any sample is known, or not even that."""
    return replace(planned(*setting, sizes=sizes), needs=dict.fromkeys(sizes), least_bytes=least)


UNRECORDED = Crashed(f"RuntimeError: {UNRECORDABLE}: operation not permitted")


def test_the_twin_of_a_recorded_setting_is_spare_until_recording_fails() -> None:
    recorded, twin = planned("kernels", "cuda-graphs"), planned("kernels")
    plain = planned("norms")
    assert order([twin, recorded, plain]) == [(("kernels", "cuda-graphs"), 16), (("norms",), 16)]
    assert order([twin, plain]) == [(("kernels",), 16), (("norms",), 16)]
    for failure, left in ((UNRECORDED, [(("kernels",), 16), (("norms",), 16)]), (CRASH, [(("norms",), 16)])):
        assert order([twin, recorded, plain], first(recorded, failure)) == left
    # One failure to record is one strike against recording; the second ends it.
    other = planned("gelu", "cuda-graphs")
    known = first(plain, took(1.0)) | first(recorded, UNRECORDED)
    assert (other.setting, 16) in order([recorded, other, plain], known)
    third = planned("compile", "cuda-graphs")
    assert order([recorded, other, third, plain], known | first(other, UNRECORDED)) == []


def test_a_trial_whose_samples_surely_need_more_than_the_memory_is_left_out() -> None:
    """Sixteen samples ran out of it, so at least a sixteenth of 91 GiB is needed for each."""
    failed, other = unpredicted("norms"), unpredicted(sizes=(64, 8))
    assert order([failed, other], first(failed, FULL)) == [((), 8)]


def test_trials_that_hardly_fit_come_after_those_that_do_the_smallest_first() -> None:
    """A sample takes 50 GiB; a setting that needs 50 GiB before any has room for 42 GiB."""
    measured = unpredicted(sizes=(1,))
    fits, hardly, more = (
        unpredicted("kernels", sizes=(1,)),
        unpredicted("kernels", "gelu", sizes=(1, 2), least=50 << 30),
        unpredicted("kernels", "gelu", "masked-head", sizes=(3,), least=50 << 30),
    )
    outcome = took(1.0, 4.0)
    known = first(measured, replace(outcome, measurement=replace(outcome.measurement, peak_bytes=51 << 30)))
    found = order([more, hardly, measured, fits], known)
    assert found == [(fits.setting, 1), (hardly.setting, 1), (hardly.setting, 2), (more.setting, 3)]


def test_a_setting_is_left_out_unless_its_bound_is_below_the_fastest_step_of_all() -> None:
    plain, fast = planned(), planned("kernels")
    known = first(plain, took(1.0)) | first(fast, took(0.5))
    plans = [plain, fast, planned("kernels", "checkpointing"), planned("kernels", "compile")]
    assert order(plans, known) == [(("kernels", "compile"), 16)]


def test_a_bound_as_low_as_the_limit_leaves_a_setting_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "EQUAL_WITHIN", 1.0)
    plain = planned("kernels")
    assert order([plain, planned("kernels", "norms")], first(plain, took(1.0))) == []
    monkeypatch.setattr(candidates, "EQUAL_WITHIN", 1.001)
    assert order([plain, planned("kernels", "norms")], first(plain, took(1.0))) != []


def test_recorded_passes_show_the_overhead_of_recorded_passes_alone() -> None:
    """Two recorded passes without overhead: a larger one takes as long for each sample, if it is recorded."""
    recorded = planned("kernels", "cuda-graphs", sizes=(16, 8))
    known = {trial.id: took(trial.micro_batch / 16) for trial in recorded.trials}
    for setting, left in ((("kernels", "norms", "cuda-graphs"), False), (("kernels", "norms"), True)):
        assert bool(order([recorded, planned(*setting, sizes=(64,))], known)) == left
    launched = planned("kernels", sizes=(16, 8))
    both = known | {trial.id: took(trial.micro_batch / 16) for trial in launched.trials}
    assert order([recorded, launched, planned("kernels", "norms", sizes=(64,))], both) == []


def test_once_an_overhead_is_known_a_second_micro_batch_is_not_preferred() -> None:
    recorded, fast = planned("cuda-graphs", sizes=(16, 8)), planned("kernels", sizes=(64, 32))
    known = {trial.id: took(trial.micro_batch / 16) for trial in recorded.trials}
    known |= {fast.trials[0].id: took(2.0)}
    plans = [recorded, fast, planned("kernels", "gelu", sizes=(64,))]
    assert order(plans, known) == [(("kernels", "gelu"), 64), (("kernels",), 32)]
    assert order(plans[1:], known) == [(("kernels",), 32), (("kernels", "gelu"), 64)]


@pytest.mark.parametrize(
    ("update", "share", "late"),
    [(0.5, 0.999, True), (0.5, 1.0, False), (0.0, 0.999, True), (0.0, 1.0, False), (None, 0.999, True),
     (None, 1.0, False)],
)  # fmt: skip
def test_a_trial_is_late_if_twelve_of_its_shortest_steps_take_longer_than_it_has(
    update: float | None, share: float, late: bool
) -> None:
    """A pass with kernels is expected to take 1 / 1.2 of a plain one. Late trials come last."""
    plain = planned()
    outcome = took(1.0, update or 0.0)
    if update is None:  # steps of one kind do not tell a pass from an update
        outcome = Measured(measurement([StepSample(64, 64.0)] * 5))
    fast, small = planned("kernels"), planned("kernels", sizes=(8,))
    seconds = 12 * (1.2**-1 + (update or 0.0))
    found = promising([plain, small, fast], first(plain, outcome), MEMORY, share * seconds)
    assert [trial.micro_batch for trial in found] == ([8, 16] if late else [16, 8])


def test_a_trial_with_too_few_steps_is_as_one_without_a_time() -> None:
    plain, other = planned(sizes=(16, 8)), planned("kernels")
    few = Measured(measurement([StepSample(64, 64.0)]))
    assert order([plain, other], first(plain, few)) == [(("kernels",), 16), ((), 8)]


@pytest.mark.parametrize(
    ("setting", "size", "best", "overhead", "seconds"),
    [
        ((), 16, (), None, 64 * 1.0),
        ((), 8, (), None, 128 * (8 + 0.25) / (16 + 0.25)),
        ((), 8, (), 0.1, 128 * (8 + 0.25) / (16 + 0.25)),  # a pass is believed to have that much
        ((), 8, (), 4.0, 128 * (8 + 4) / (16 + 4)),
        ((), 32, (), 4.0, 32 * 2**1.001),
        (("checkpointing",), 16, (), None, 64 * 1.25),
        (("kernels",), 16, ("checkpointing",), None, 64 / 1.2 / 1.25),
        (("kernels", "gelu"), 16, (), None, 64 / 1.2**2),
        (("zero-1", "offload"), 16, (), None, None),
    ],
)
def test_the_expected_time_of_a_step(
    setting: Setting, size: int, best: Setting, overhead: float | None, seconds: float | None
) -> None:
    measured = TimedTrial(planned(*best).trials[0], 64.5, 0.5)
    trial = planned(*setting, sizes=(size,)).trials[0]
    cost = None if overhead is None else PassCost(overhead, 8)
    if seconds is None:
        seconds = 64 * candidates._believed(setting) + (parameters_of(PYTHIA) or 0) * 0.4e-9
    assert candidates._expected(trial, measured, cost) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("failure", "size", "predicted", "doubted"),
    [
        (FULL, 4, False, False),  # a quarter of what ran out of memory
        (FULL, 5, False, True),
        (FULL, 5, True, False),  # the formula knows better
        (SLOW, 4, True, False),
        (SLOW, 5, True, True),
        (STUCK, 5, False, False),
        (CRASH, 5, False, False),
    ],
)
def test_before_any_time_a_trial_of_more_than_a_quarter_of_what_failed_is_doubted(
    failure: Failure, size: int, predicted: bool, doubted: bool
) -> None:
    failed, sure = planned(), planned("checkpointing", sizes=(1,))
    trial = (
        planned("kernels", sizes=(size,)) if predicted else unpredicted("kernels", sizes=(size,), least=None)
    )
    found = order([failed, sure, trial], first(failed, failure))
    assert found[0] == ((("checkpointing",), 1) if doubted else (("kernels",), size))


def test_a_failure_is_blamed_on_the_fewest_methods_that_failed_before() -> None:
    settings = (("compile", "gelu"), ("kernels",), ("compile", "gelu", "kernels"), ("gelu", "norms"))
    plans = [planned(*setting) for setting in settings]
    known: dict[str, Outcome] = {}
    for plan, failure in zip(plans, (CRASH, STUCK, CRASH, CRASH), strict=True):
        known |= first(plan, failure)
    blamed = candidates._blamed(TriedTrials(plans, known), ())
    assert blamed == [
        (frozenset({"compile", "gelu"}), 1),
        (frozenset({"kernels"}), 2),
        (frozenset({"kernels"}), 1),
        (frozenset({"gelu", "norms"}), 1),
    ]


def test_suspicion_is_shared_among_the_methods_to_which_a_failure_may_be_due() -> None:
    blamed = [(frozenset({"compile", "gelu"}), 1), (frozenset({"kernels"}), 2)]
    for setting, suspicion in (
        ((), 0.0),
        (("compile",), 0.5),
        (("compile", "gelu"), 1.0),
        (("kernels", "gelu"), 2.5),
    ):
        assert candidates._suspicion(setting, blamed) == suspicion


def guess(*setting: str, days: float | None, size: int = 16) -> tuple[bool, float, float, int]:
    plan = replace(planned(*setting, sizes=(size,)), floor_days=days)
    return candidates._guess(plan, plan.trials[0], MEMORY)


def test_before_any_time_steps_are_believed_to_reach_four_tenths_of_the_peak() -> None:
    """A run of 143,000 steps, which takes 16.55 days at the peak rate, takes 10 s for each of them."""
    steps = PYTHIA.recipe.steps
    days = 10 * steps / 86400
    step = 10 * (1 + 1 / 16) / 0.4
    assert guess(days=days) == (False, 0.0, pytest.approx(step), -16)
    assert guess(days=None) == (False, 0.0, 1 + 1 / 16, -16)
    host = (parameters_of(PYTHIA) or 0) * 0.4e-9
    dearer = candidates._believed(("zero-1", "offload"))
    assert guess("zero-1", "offload", days=days)[2] == pytest.approx(dearer * step + host)
    added = (parameters_of(PYTHIA) or 0) * 0.45e-9
    assert guess("fsdp-2", "offload", days=days / 10)[2] == pytest.approx(64 * added + host)


def test_before_any_time_passes_longer_than_five_seconds_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert candidates.LONG_PASS_SECONDS == 5.0
    _, _, step, _ = guess(days=1000.0)
    for limit, seconds in ((0.999, step / 64), (1.0, 0.0), (1.001, 0.0)):
        monkeypatch.setattr(candidates, "LONG_PASS_SECONDS", limit * step / 64)
        assert guess(days=1000.0)[1] == seconds

"""The guided search's candidates: trials of one model that can still be faster than its fastest one. Pure.

In: the model's planned settings and the outcomes so far. Out: the trials worth measuring, the next one first.
Every open trial has a lower bound (lower_bounds.py). A trial stays a candidate while its bound lies more than
a percent below the fastest measured step, so no trial that was left out could have been faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from bench.planning.plan import SettingPlan
from bench.planning.search import lower_bounds
from bench.planning.search.learnt_memory import LearntMemory
from bench.planning.search.lower_bounds import PassCost, TimedTrial
from bench.planning.search.tried_trials import BACKOFF, OpenTrial, TriedTrials
from bench.records.estimate import SECONDS_A_DAY, pass_and_update, step_interval
from bench.records.fastest import EQUAL_WITHIN
from bench.records.trial import Crashed, Outcome, OutOfMemory, TimedOut, Trial
from bench.training.methods import RECORDED, UNRECORDABLE, method_named
from bench.training.setting import SETTINGS_KEPT, Setting

COMFORTABLE = 0.85  # share of the memory below which a trial's predicted need is taken as safe
STRIKES_OUT = 2  # a timeout counts two, a crash one; then settings with that method are skipped
# Priors, used only to order trials: a wrong one costs a measurement and changes no answer.
PRIOR_OVERHEAD = 0.25  # fixed cost of a pass, in samples
FARTHER = 0.001  # exponent that prefers the nearer of two larger micro-batches
PRIOR_RATE = 0.4  # share of the vendor's peak rate
# Seconds for one parameter's gradient in every pass under FSDP2 with offloading, if the host is slower than
# the device: 0.4 to 0.6 ns were measured (docs/settings.md: mamba-2.8b, pythia-1b).
PRIOR_ADDED_UP = 0.45e-9
STEPS = 12  # least steps of a trial, of one or two passes each
LONG_PASS_SECONDS = 5.0  # a trial of longer passes may not end within its time


def promising(
    plans: Sequence[SettingPlan],
    outcomes: Mapping[str, Outcome],
    memory_bytes: int,
    trial_seconds: float = math.inf,
) -> list[Trial]:
    """Return every trial of one model that may yet be its fastest, the most promising first."""
    tried = TriedTrials(plans, outcomes)
    fits = LearntMemory(tried, memory_bytes)
    fit_of = {each.trial.id: fits(each.plan, each.trial) for each in tried.open}
    spare = _spare_settings(plans, tried)
    open_ = [e for e in tried.open if fit_of[e.trial.id] != "no" and e.trial.setting not in spare]
    timed = _timed(tried)
    blamed = _blamed(tried, timed)
    if not timed:
        return _before_any_time(open_, tried, blamed, memory_bytes)
    best = min(timed, key=lambda timed_trial: timed_trial.step_seconds)
    pass_cost = lower_bounds.pass_cost_of(timed)
    left = [trial for _, trial in open_ if _strikes(trial.setting, blamed) < STRIKES_OUT]
    candidates = _below(EQUAL_WITHIN * best.step_seconds, left, timed, pass_cost)
    doubtful = {each.trial.id for each in open_ if each.plan.may_not_fit(each.trial, memory_bytes)}

    def turn(trial: Trial) -> tuple[bool, bool, int, bool, float]:
        """Return a sort key: trials that end in time and fit come first, then those that may not fit.

        Among these, a second micro-batch of the fastest setting comes first, because the overhead that it
        shows bounds all other settings. The rest are ordered by expected time, because a fast trial rules out
        many.
        """
        expected = _expected(trial, best, pass_cost)
        step = expected / trial.accumulation + (best.update_seconds or 0.0)
        # The smallest of the trials that hardly fit comes first: if it does not fit, the larger ones do not.
        hardly = trial.micro_batch if fit_of[trial.id] == "hardly" else 0
        shows_overhead = pass_cost is None and _next_to(trial, best.trial)
        late = STEPS * step > trial_seconds
        return late, trial.id in doubtful, hardly, not shows_overhead, expected

    return sorted(candidates, key=turn)


def _below(
    limit: float, trials: Sequence[Trial], timed: Sequence[TimedTrial], pass_cost: PassCost | None
) -> list[Trial]:
    """Return the trials whose lower bound is below `limit`, in seconds of a step."""
    # Recorded passes show nothing about the overhead of passes that the host launches kernel by kernel.
    launched = lower_bounds.pass_cost_of([each for each in timed if RECORDED not in each.trial.setting])
    bounds = lower_bounds.LowerBounds(timed)
    return [
        trial
        for trial in trials
        if not bounds.reach(limit, trial, pass_cost if RECORDED in trial.setting else launched)
    ]


def _spare_settings(plans: Sequence[SettingPlan], tried: TriedTrials) -> set[Setting]:
    """Return settings whose twin that records passes is planned too, and did not fail to record."""
    failed = {each.trial.setting for each in tried.failed if _is_unrecordable(each.failure)}
    recorded = {plan.trials[0].setting for plan in plans} - failed
    return {
        tuple(name for name in setting if name != RECORDED) for setting in recorded if RECORDED in setting
    }


def _before_any_time(
    open_: Sequence[OpenTrial],
    tried: TriedTrials,
    blamed: Sequence[tuple[frozenset[str], int]],
    memory_bytes: int,
) -> list[Trial]:
    """Return trials in order while no trial has been timed: least suspect first, then by prior time."""
    ran_out = [each.trial for each in tried.failed if isinstance(each.failure, OutOfMemory)]
    slow = [each.trial for each in tried.failed if each.was_slow]

    def turn(open_trial: OpenTrial) -> tuple[bool, float, int, tuple[bool, float, float, int]]:
        plan, trial = open_trial
        suspicion, doubts = _suspicion(trial.setting, blamed), _doubts(plan, trial, ran_out, slow)
        doubtful = plan.may_not_fit(trial, memory_bytes)
        return doubtful, suspicion, doubts, _guess(plan, trial, memory_bytes)

    return [trial for _, trial in sorted(open_, key=turn)]


def _expected(trial: Trial, best: TimedTrial, pass_cost: PassCost | None) -> float:
    """Return the expected seconds of a trial's step. They only order trials, and never exclude one."""
    overhead = max(pass_cost.overhead if pass_cost else 0.0, PRIOR_OVERHEAD)
    size, measured_size = trial.micro_batch, best.trial.micro_batch
    # A larger micro-batch may be faster, or slower if memory is short: one near the measured size is safer.
    if size < measured_size:
        ratio = (size + overhead) / (measured_size + overhead)
    else:
        ratio = (size / measured_size) ** (1 + FARTHER)
    times = _believed(trial.setting) / _believed(best.trial.setting)
    a_pass = _with_host(times * ratio * best.pass_seconds, trial)
    return trial.accumulation * a_pass + lower_bounds.host_update_seconds(trial)


def _next_to(trial: Trial, measured: Trial) -> bool:
    """Whether a trial has the setting of a measured one, and about half of its micro-batch or more."""
    return trial.setting == measured.setting and 0.4 <= trial.micro_batch / measured.micro_batch < 1


def _timed(tried: TriedTrials) -> list[TimedTrial]:
    timed = []
    for _, trial, measurement in tried.measured:
        step = step_interval(measurement.steps, trial.accumulation)
        _, update = pass_and_update(measurement.steps)
        if step is not None:
            timed.append(TimedTrial(trial, step.value, None if update is None else max(0.0, update)))
    return lower_bounds.with_updates(timed)


def _doubts(plan: SettingPlan, trial: Trial, ran_out: Sequence[Trial], slow: Sequence[Trial]) -> int:
    """Count the failed trials, of any setting, with less than BACKOFF times this trial's samples.

    Trials that ran out of time count, and those out of memory if no formula predicts this trial's memory.
    """
    predicted = plan.needs[trial.micro_batch] is not None
    failed = [*slow, *(() if predicted else ran_out)]
    return sum(other.micro_batch < BACKOFF * trial.micro_batch for other in failed)


def _blamed(tried: TriedTrials, timed: Sequence[TimedTrial]) -> list[tuple[frozenset[str], int]]:
    """Return (methods, strikes) for each failure: the fewest methods that explain it and never worked yet."""
    worked = {name for timed_trial in timed for name in timed_trial.trial.setting}
    failed = [
        (suspects, STRIKES_OUT if isinstance(each.failure, TimedOut) else 1)
        for each in tried.failed
        if isinstance(each.failure, (Crashed, TimedOut)) and not each.was_slow
        if (suspects := _suspects(each.failure, frozenset(each.trial.setting) - worked))
    ]
    return [
        (min((other for other, _ in failed if other <= suspects), key=len), strikes)
        for suspects, strikes in failed
    ]


def _suspects(failure: Crashed | TimedOut, unproven: frozenset[str]) -> frozenset[str]:
    """Return the methods that a failure may be blamed on, of those that never worked yet."""
    if _is_unrecordable(failure):
        return frozenset({RECORDED})
    return unproven - {RECORDED}


def _is_unrecordable(failure: Outcome) -> bool:
    return isinstance(failure, Crashed) and UNRECORDABLE in failure.reason


def _strikes(setting: Setting, blamed: Sequence[tuple[frozenset[str], int]]) -> int:
    """Sum the strikes against a setting: of failures blamed on methods that are all in the setting."""
    return sum(strikes for suspects, strikes in blamed if suspects <= {*setting})


def _suspicion(setting: Setting, blamed: Sequence[tuple[frozenset[str], int]]) -> float:
    """Return how likely a setting is to fail too, while no trial has worked: its share of blamed methods."""
    return sum(strikes * len(suspects & {*setting}) / len(suspects) for suspects, strikes in blamed)


def _guess(plan: SettingPlan, trial: Trial, memory_bytes: int) -> tuple[bool, float, float, int]:
    """Return a sort key by priors: first safe memory, then short passes, short steps, large micro-batches."""
    need = plan.needs[trial.micro_batch]
    tight = (need or plan.least_bytes or 0) > COMFORTABLE * memory_bytes
    cost = _believed(trial.setting) * (1 + 1 / trial.micro_batch)
    if plan.floor_days is None:
        return tight, 0.0, cost, -trial.micro_batch
    step = cost * plan.floor_days * SECONDS_A_DAY / trial.model.recipe.steps / PRIOR_RATE
    a_pass = (
        _with_host(step / trial.accumulation, trial)
        + lower_bounds.host_update_seconds(trial) / trial.accumulation
    )
    long_pass = a_pass if a_pass > LONG_PASS_SECONDS else 0.0
    return tight, long_pass, a_pass * trial.accumulation, -trial.micro_batch


def _with_host(device_seconds: float, trial: Trial) -> float:
    """Return a pass's seconds: the device's, or those that the host takes to add up gradients if longer."""
    return max(device_seconds, lower_bounds.host_sum_seconds(trial, PRIOR_ADDED_UP))


@lru_cache(SETTINGS_KEPT)
def _believed(setting: Setting) -> float:
    cost = math.prod(method_named(name).prior_time for name in setting)
    # Each kind of method that chooses kernels is believed to make a step 1.2 times faster.
    free = len(lower_bounds.arithmetic_of(setting))
    return cost * 1.2**-free

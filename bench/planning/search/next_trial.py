"""Choose the next trial of a run, given its plan and the outcomes so far.

In: a `Plan` and the outcomes by trial id. Out: the next `Trial`, or None once every setting is decided; the
number of undecided settings. Pure, so benchmarks/replay.py replays the search on recorded runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from bench.planning.plan import Plan, SettingPlan
from bench.planning.search import candidates
from bench.planning.search.tried_trials import TriedTrials
from bench.records.estimate import Interval, overhead_seconds, step_interval
from bench.records.fastest import confidence
from bench.records.marks import steady_first
from bench.records.trial import Measured, Measurement, Outcome, OutOfMemory, Timing, Trial

WORTHWHILE = 0.99  # go on to smaller micro-batches while each takes less than this share of the last
REMEASURE_BELOW = 0.9  # confidence in the fastest below which it and its rival are measured again
LONGER = 3  # factor on the measuring time of a second measurement


class _TimedStep(NamedTuple):
    trial: Trial
    step: Interval  # with its share of saving, evaluating and logging


def next_trial(plan: Plan, outcomes: Mapping[str, Outcome]) -> Trial | None:
    """Return the first trial of the plan that is still open; None when all settings are decided.

    The plan's order puts every model's first setting before any model's second, so that an early end leaves
    an answer for each model. A trial that may not fit waits for all others. Guided models come after the
    others, each with its first answer before any with its second.
    """
    doubtful = None
    for setting_plan in plan.cells:
        if setting_plan.model.name in plan.guided or not (trial := open_trial(setting_plan, outcomes)):
            continue
        if not setting_plan.may_not_fit(trial, plan.memory_bytes):
            return trial
        doubtful = doubtful or trial
    if doubtful:
        return doubtful
    for setting_plans in sorted(_guided(plan), key=lambda plans: _turn(plans, outcomes)):
        promising = candidates.promising(setting_plans, outcomes, plan.memory_bytes, plan.trial_seconds)
        if promising:
            return promising[0]
    return None


def settings_in_order(plan: Plan, model: str) -> list[SettingPlan]:
    """Return a model's settings in the order in which they would be tried if nothing were learnt on the way.

    Settings that a search would not try, because another one is never slower, come last.
    """
    plans = _setting_plans(plan, model)
    if model not in plan.guided:
        return plans
    ordered = candidates.promising(plans, {}, plan.memory_bytes, plan.trial_seconds)
    turn = {trial.setting: place for place, trial in reversed([*enumerate(ordered)])}
    return sorted(plans, key=lambda plan: turn.get(plan.setting, len(ordered)))


def finalist(plan: Plan, outcomes: Mapping[str, Outcome], again: Collection[str]) -> Trial | None:
    """Return the trial to measure a second time, once no trial is open; None if no trial needs it.

    Of the trials that may be a guided model's fastest, it is the one with the widest interval. `again` has
    the ids of trials that were measured twice already.
    """
    for setting_plans in _guided(plan):
        timed = sorted(_timed(setting_plans, outcomes), key=lambda each: each.step.value)
        rivals = [each for each in timed[1:] if confidence(timed[0].step, [each.step]) < REMEASURE_BELOW]
        if rivals:
            for trial, _ in sorted([timed[0], *rivals], key=lambda each: -each.step.percent):
                if trial.id not in again:
                    return trial
    return None


def longer(timing: Timing) -> Timing:
    """Return the timing of a second measurement: longer, and to a tighter interval."""
    return replace(
        timing, measure_seconds=LONGER * timing.measure_seconds, target_percent=timing.target_percent / LONGER
    )


def _timed(plans: list[SettingPlan], outcomes: Mapping[str, Outcome]) -> list[_TimedStep]:
    return [
        _TimedStep(trial, step)
        for _, trial, measurement in TriedTrials(plans, outcomes).measured
        if (step := _step(trial, measurement)) is not None
    ]


def _guided(plan: Plan) -> list[list[SettingPlan]]:
    """Return the planned settings of each guided model."""
    return [_setting_plans(plan, model) for model in _models(plan) if model in plan.guided]


def _setting_plans(plan: Plan, model: str) -> list[SettingPlan]:
    return [setting_plan for setting_plan in plan.cells if setting_plan.model.name == model]


def _turn(plans: list[SettingPlan], outcomes: Mapping[str, Outcome]) -> tuple[int, int]:
    """Return a sort key of models: the fewest measured trials first, then the fewest tried.

    So a model whose trials only fail keeps no other model waiting.
    """
    tried = TriedTrials(plans, outcomes)
    return len(tried.measured), len(tried.measured) + len(tried.failed)


def open_trial(plan: SettingPlan, outcomes: Mapping[str, Outcome]) -> Trial | None:
    """Return a setting's next trial: a smaller micro-batch while memory runs out or smaller is faster."""
    best = None
    for trial in plan.trials:
        outcome = outcomes.get(trial.id)
        if outcome is None:
            return trial
        if isinstance(outcome, OutOfMemory):
            continue
        seconds = step_seconds(trial, outcome)
        if seconds is None or (best is not None and seconds > WORTHWHILE * best):
            return None
        best = seconds
    return None


def unproven(plan: Plan, outcomes: Mapping[str, Outcome], proven: Collection[str]) -> Trial | None:
    """Return the next model's fastest trial that was not yet compared with real training."""
    for model in _models(plan):
        best = fastest(plan, outcomes, model)
        if best is not None and best.id not in proven:
            return best
    return None


def fastest(plan: Plan, outcomes: Mapping[str, Outcome], model: str) -> Trial | None:
    """Return a model's trial with the shortest step so far, a steady one if possible; None without any."""
    timed = _timed(_setting_plans(plan, model), outcomes)
    return min(timed, key=lambda each: steady_first(each.step)).trial if timed else None


def step_seconds(trial: Trial, outcome: Outcome | None) -> float | None:
    """Return a step's seconds with its share of saving, evaluating and logging; None if not measured."""
    if not isinstance(outcome, Measured):
        return None
    step = _step(trial, outcome.measurement)
    return None if step is None else step.value


def _step(trial: Trial, measurement: Measurement) -> Interval | None:
    step = step_interval(measurement.steps, trial.accumulation)
    return step and step.shifted(overhead_seconds(measurement, trial.model))


def remaining(plan: Plan, outcomes: Mapping[str, Outcome]) -> int:
    """Count the undecided settings of all models."""
    return sum(undecided(plan, outcomes, model) for model in _models(plan))


class Tally(NamedTuple):
    """How far the search is: decided models or settings, and all of them."""

    decided: int
    total: int
    noun: str


def tally(plan: Plan, outcomes: Mapping[str, Outcome]) -> Tally:
    """Count the models that are decided if any is guided, else the settings."""
    if plan.guided:
        models = _models(plan)
        return Tally(sum(not undecided(plan, outcomes, model) for model in models), len(models), "models")
    return Tally(len(plan.cells) - remaining(plan, outcomes), len(plan.cells), "settings")


def _models(plan: Plan) -> list[str]:
    return list(dict.fromkeys(setting_plan.model.name for setting_plan in plan.cells))


def undecided(plan: Plan, outcomes: Mapping[str, Outcome], model: str) -> int:
    """Count a model's settings that may yet be its fastest (if guided), or that have an open trial."""
    plans = _setting_plans(plan, model)
    if model in plan.guided:
        return len({trial.setting for trial in candidates.promising(plans, outcomes, plan.memory_bytes)})
    return sum(open_trial(setting_plan, outcomes) is not None for setting_plan in plans)

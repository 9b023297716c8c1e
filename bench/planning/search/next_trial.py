"""Which trial next, given the plan and what is known so far. Pure: replayable offline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from bench.planning.plan import Plan, SettingPlan
from bench.planning.search import candidates
from bench.records.estimate import Interval, overhead_seconds, step_interval
from bench.records.fastest import confidence
from bench.records.trial import Measured, Outcome, OutOfMemory, Timing, Trial

WORTHWHILE = 0.99  # of the time with the larger micro-batch: else the search goes no further down
SURE = 0.9  # that a rival is not more than a percent faster: else both are measured again
LONGER = 3  # times the measuring time, for the second time


def next_trial(plan: Plan, known: Mapping[str, Outcome]) -> Trial | None:
    """The first trial of the plan that is still open; None when all are decided.

    The plan's order puts every model's first setting before any model's second, so that an
    early end leaves an answer for each model. Guided models come after those that are not, each with
    its first answer before any with its second.
    """
    for cell in plan.cells:
        if cell.model.name not in plan.guided and (trial := open_trial(cell, known)) is not None:
            return trial
    for cells in sorted(_guided(plan), key=lambda cells: _turn(cells, known)):
        if trial := candidates.choose(cells, known, plan.memory_bytes, plan.trial_seconds):
            return trial
    return None


def finalist(plan: Plan, known: Mapping[str, Outcome], again: Collection[str]) -> Trial | None:
    """What to measure once more where a guided model's fastest is not sure: the least known in question.

    For when no trial is open. `again` are those that were measured twice by now: none is a third time.
    """
    for cells in _guided(plan):
        timed = sorted(_timed(cells, known), key=lambda one: one[1].value)
        if not timed:
            continue
        best, *others = timed
        rivals = [other for other in others if confidence(best[1], [other[1]]) < SURE]
        if not rivals:
            continue
        for identity, _, trial in sorted([best, *rivals], key=lambda one: -one[1].percent):
            if identity not in again:
                return trial
    return None


def longer(timing: Timing) -> Timing:
    """How a finalist is measured again."""
    return replace(
        timing,
        measure_seconds=LONGER * timing.measure_seconds,
        target_percent=timing.target_percent / LONGER,
    )


def _timed(cells: list[SettingPlan], known: Mapping[str, Outcome]) -> list[tuple[str, Interval, Trial]]:
    return [
        (identity, interval, trial)
        for cell in cells
        for identity, trial in zip(cell.ids, cell.trials, strict=True)
        if (interval := _step(trial, known.get(identity))) is not None
    ]


def _guided(plan: Plan) -> list[list[SettingPlan]]:
    """The cells of each guided model."""
    return [_cells(plan, model) for model in _models(plan) if model in plan.guided]


def _cells(plan: Plan, model: str) -> list[SettingPlan]:
    return [cell for cell in plan.cells if cell.model.name == model]


def _turn(cells: list[SettingPlan], known: Mapping[str, Outcome]) -> tuple[int, int]:
    """The fewest measured first, of those the fewest tried: one that only fails keeps no other waiting."""
    ended = [known[identity] for cell in cells for identity in cell.ids if identity in known]
    return sum(isinstance(outcome, Measured) for outcome in ended), len(ended)


def open_trial(cell: SettingPlan, known: Mapping[str, Outcome]) -> Trial | None:
    """The next micro-batch of this cell: smaller as long as memory ran out, or as that is faster."""
    best = None
    for identity, trial in zip(cell.ids, cell.trials, strict=True):
        outcome = known.get(identity)
        if outcome is None:
            return trial
        if isinstance(outcome, OutOfMemory):
            continue
        seconds = step_seconds(trial, outcome)
        if seconds is None or (best is not None and seconds > WORTHWHILE * best):
            return None
        best = seconds
    return None


def unproven(plan: Plan, known: Mapping[str, Outcome], proven: Collection[str]) -> Trial | None:
    """The next model's fastest trial that was not yet held against real training."""
    for model in _models(plan):
        best = fastest(plan, known, model)
        if best is not None and best.id not in proven:
            return best
    return None


def fastest(plan: Plan, known: Mapping[str, Outcome], model: str) -> Trial | None:
    timed = _timed(_cells(plan, model), known)
    return min(timed, key=lambda one: one[1].value)[2] if timed else None


def step_seconds(trial: Trial, outcome: Outcome | None) -> float | None:
    interval = _step(trial, outcome)
    return None if interval is None else interval.value


def _step(trial: Trial, outcome: Outcome | None) -> Interval | None:
    """With its share of saving, evaluating and logging: what the answer of a run goes by."""
    if not isinstance(outcome, Measured):
        return None
    step = step_interval(outcome.measurement.steps, trial.accumulation)
    return step and step.shifted(overhead_seconds(outcome.measurement, trial.model))


def remaining(plan: Plan, known: Mapping[str, Outcome]) -> int:
    """Settings that are not decided, of all models."""
    return sum(undecided(plan, known, model) for model in _models(plan))


def tally(plan: Plan, known: Mapping[str, Outcome]) -> tuple[int, int, str]:
    """How many are decided, of how many: of models where a search decides, else of settings."""
    if plan.guided:
        models = _models(plan)
        return sum(not undecided(plan, known, model) for model in models), len(models), "models"
    return len(plan.cells) - remaining(plan, known), len(plan.cells), "settings"


def _models(plan: Plan) -> list[str]:
    return list(dict.fromkeys(cell.model.name for cell in plan.cells))


def undecided(plan: Plan, known: Mapping[str, Outcome], model: str) -> int:
    """One model's: of a guided one, the settings that may yet be its fastest."""
    cells = _cells(plan, model)
    if model in plan.guided:
        return len({trial.setting for trial in candidates.promising(cells, known, plan.memory_bytes)})
    return sum(open_trial(cell, known) is not None for cell in cells)

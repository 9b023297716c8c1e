"""Which trial next, given the plan and what is known so far. Pure: replayable offline."""

from __future__ import annotations

from collections.abc import Mapping

from bench.plan import Cell, Plan
from bench.result import Outcome, OutOfMemory, Trial


def next_trial(plan: Plan, known: Mapping[str, Outcome]) -> Trial | None:
    """The first trial of the plan that is still open; None when all are decided.

    The plan's order puts every model's first setting before any model's second, so that an
    early end leaves an answer for each model.
    """
    for cell in plan.cells:
        trial = open_trial(cell, known)
        if trial is not None:
            return trial
    return None


def open_trial(cell: Cell, known: Mapping[str, Outcome]) -> Trial | None:
    """The next micro-batch of this cell: smaller as long as memory ran out, then none."""
    for trial in cell.trials:
        outcome = known.get(trial.id)
        if outcome is None:
            return trial
        if not isinstance(outcome, OutOfMemory):
            return None
    return None


def remaining(plan: Plan, known: Mapping[str, Outcome]) -> int:
    return sum(open_trial(cell, known) is not None for cell in plan.cells)

"""The answer of a run for each model: its fastest trial, whether all is measured that could beat it, and
how sure it is that none of the others is faster. Pure, so that whoever verifies recomputes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.base.errors import one_line
from bench.records.estimate import BETWEEN_PROCESSES, TO_SIGMA, Interval
from bench.records.run_results import Fastest, Results, TrialResult
from bench.records.text import (
    failure_text,
)

if TYPE_CHECKING:
    from bench.records.run_results import TrialResult

FIRM = 0.95  # a fastest that is less sure is told together with its firmest rival
NEAR = 0.99  # of the fastest: whatever is no faster than this does not matter
KNOWN = 3  # pairs of processes that BETWEEN_PROCESSES weighs as much as, beside those of a run


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """What trials that two processes measured tell of the machine."""

    trials: int
    largest: float  # difference between two, of the time
    spread: float  # of processes here, one standard deviation of the time: at least what others showed


def fastest(trials: Iterable[TrialResult]) -> TrialResult | None:
    """The ranking: an implausible figure is our defect and never ranked."""
    ranked = [(t.estimate.days.value, t) for t in trials if t.estimate is not None and t.estimate.plausible]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def fastest_with_confidence(model: str, trials: Sequence[TrialResult], undecided: int) -> Fastest:
    own = [trial for trial in trials if trial.model == model]
    best = fastest(own)
    if best is None or best.estimate is None:
        return Fastest(model, None, undecided, None)
    others = [t.estimate.days for t in own if t is not best and t.estimate and t.estimate.plausible]
    return Fastest(
        model, best.id, undecided, confidence(best.estimate.days, others, process_spread(trials).spread)
    )


def process_spread(trials: Iterable[TrialResult]) -> ProcessSpread:
    """Of all models of a run: they were measured on the same machine."""
    pairs = [
        (t.earlier, t.estimate.days) for t in trials if t.earlier and t.estimate and t.estimate.plausible
    ]
    apart = [math.log(one.value / other.value) for one, other in pairs]
    # What lies between two is their own uncertainty and that of two processes.
    own = [math.hypot(*(day.half_width / day.value * TO_SIGMA for day in pair)) for pair in pairs]
    excess = math.fsum((d**2 - o**2) / 2 for d, o in zip(apart, own, strict=True))
    variance = (KNOWN * BETWEEN_PROCESSES**2 + excess) / (KNOWN + len(pairs))
    spread = math.sqrt(max(variance, BETWEEN_PROCESSES**2))
    return ProcessSpread(len(pairs), max(map(abs, apart), default=0.0), spread)


def runner_up(model: str, trials: Sequence[TrialResult]) -> tuple[float, TrialResult] | None:
    """Where the fastest of a model is not sure: how sure, and which of the rest surely is the fastest."""
    own = [trial for trial in trials if trial.model == model]
    best = fastest(own)
    others = [(t.estimate.days, t) for t in own if t is not best and t.estimate and t.estimate.plausible]
    if best is None or best.estimate is None or not others:
        return None
    sure = confidence(best.estimate.days, [days for days, _ in others], process_spread(trials).spread)
    return (
        (sure, min(others, key=lambda pair: pair[0].value + pair[0].half_width)[1]) if sure < FIRM else None
    )


def confidence(best: Interval, others: Sequence[Interval], spread: float = BETWEEN_PROCESSES) -> float:
    """The chance that NEAR times the best time is below all others', each on its own."""
    return math.prod(_below(best.scaled(NEAR), other, spread) for other in others)


def _below(one: Interval, other: Interval, spread: float) -> float:
    sigma = TO_SIGMA * math.hypot(one.among(spread).half_width, other.among(spread).half_width)
    return 0.5 * (1 + math.erf((other.value - one.value) / (sigma * math.sqrt(2))))


def without_figures(results: Results) -> dict[str, str]:
    """Each model that has no answer, and what came of its last trial, or why there was none."""
    return {
        model.name: _why_none(model.name, results)
        for model in results.models
        if fastest(trial for trial in results.trials if trial.model == model.name) is None
    }


def _why_none(model: str, results: Results) -> str:
    trials = [trial for trial in results.trials if trial.model == model]
    if not trials and any(found.model == model and found.undecided for found in results.winners):
        return "nothing of it was measured before the run ended"
    if not trials:
        skipped = (skip.reason for skip in results.skipped if skip.model == model)
        return one_line(next(skipped, "nothing was tried"))
    last = trials[-1]
    if last.failure is not None:
        return failure_text(last.failure)
    return "implausible" if last.estimate else "too few samples"

"""The answer of a run for each model: its fastest trial, whether all is measured that could beat it, and
how sure it is that none of the others is faster. Pure, so that whoever verifies recomputes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.estimate import TO_SIGMA, Interval

if TYPE_CHECKING:
    from bench.summary import TrialResult

FIRM = 0.95  # a fastest that is less sure is told together with its firmest rival
NEAR = 0.99  # of the fastest: whatever is no faster than this does not matter


@dataclass(frozen=True, slots=True)
class Winner:
    model: str
    trial: str | None  # None: none was measured
    undecided: int  # settings that may yet be faster, when the run ended
    confidence: float | None  # that no other trial measured is more than a percent faster


def fastest(trials: Iterable[TrialResult]) -> TrialResult | None:
    """The ranking: an implausible figure is our defect and never ranked."""
    ranked = [(t.estimate.days.value, t) for t in trials if t.estimate is not None and t.estimate.plausible]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def winner(model: str, trials: Sequence[TrialResult], undecided: int) -> Winner:
    own = [trial for trial in trials if trial.model == model]
    best = fastest(own)
    if best is None or best.estimate is None:
        return Winner(model, None, undecided, None)
    others = [t.estimate.days for t in own if t is not best and t.estimate and t.estimate.plausible]
    return Winner(model, best.id, undecided, confidence(best.estimate.days, others))


def rival(trials: Sequence[TrialResult]) -> tuple[float, TrialResult] | None:
    """Where the fastest of a model is not sure: how sure, and which of the rest surely is the fastest."""
    best = fastest(trials)
    others = [(t.estimate.days, t) for t in trials if t is not best and t.estimate and t.estimate.plausible]
    if best is None or best.estimate is None or not others:
        return None
    sure = confidence(best.estimate.days, [days for days, _ in others])
    return (
        (sure, min(others, key=lambda pair: pair[0].value + pair[0].half_width)[1]) if sure < FIRM else None
    )


def confidence(best: Interval, others: Sequence[Interval]) -> float:
    """The chance that NEAR times the best time is below all others', each on its own."""
    return math.prod(_below(best.scaled(NEAR), other) for other in others)


def _below(one: Interval, other: Interval) -> float:
    spread = math.hypot(_sigma(one), _sigma(other))
    return 0.5 * (1 + math.erf((other.value - one.value) / (spread * math.sqrt(2))))


def _sigma(interval: Interval) -> float:
    return interval.of_any_process.half_width * TO_SIGMA

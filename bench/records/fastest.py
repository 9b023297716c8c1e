"""Rank the trials of a run: each model's fastest, and how certain it is that none of the others is faster.

Pure: a verifier recomputes the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

from bench.base.errors import one_line
from bench.base.frozen import dataclass
from bench.records.estimate import BETWEEN_PROCESSES, TO_SIGMA, Interval
from bench.records.gradients import GradientCheck
from bench.records.run_results import Fastest, Results, TrialResult
from bench.records.text import failure_text
from bench.training.setting import Setting

CERTAIN = 0.95  # confidence below which a fastest trial is shown together with its runner-up
EQUAL_WITHIN = 0.99  # of the fastest time: a trial counts as faster only if it takes less than this share
PRIOR_PAIRS = 3  # weight of BETWEEN_PROCESSES, in pairs of processes, beside the pairs of a run


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """Differences between processes of one run that measured the same trial."""

    trials: int
    largest: float  # difference between two processes, as a share of the time
    spread: float  # one standard deviation, as a share of the time; at least BETWEEN_PROCESSES


def wrong_settings(trials: Iterable[TrialResult]) -> Mapping[tuple[str, Setting], GradientCheck]:
    """Return the checks that found wrong gradients, by model and setting."""
    return {
        (t.model, t.setting): t.gradient_check
        for t in trials
        if t.gradient_check is not None and not t.gradient_check.agrees
    }


def ranked(trials: Iterable[TrialResult]) -> list[tuple[Interval, TrialResult]]:
    """Return the trials that may be a model's fastest, each with its days.

    An implausible figure is a defect of bench. A setting whose gradients are wrong does not train the model,
    at any micro-batch.
    """
    trials = list(trials)
    wrong = wrong_settings(trials)
    return [
        (t.estimate.days, t)
        for t in trials
        if t.estimate is not None and t.estimate.plausible and (t.model, t.setting) not in wrong
    ]


def fastest(trials: Iterable[TrialResult], marked: Container[str]) -> TrialResult | None:
    """Return the fastest trial that may be ranked; one whose id is in `marked` only if there is no other."""
    best, _ = _fastest_and_others(trials, marked)
    return best[1] if best else None


def _fastest_and_others(
    trials: Iterable[TrialResult], marked: Container[str]
) -> tuple[tuple[Interval, TrialResult] | None, list[tuple[Interval, TrialResult]]]:
    """Split the trials that may be ranked into the fastest and the others, each with its days."""
    pairs = ranked(trials)
    best = min(pairs, key=lambda pair: (pair[1].id in marked, pair[0].value), default=None)
    return best, [pair for pair in pairs if pair is not best]


def fastest_with_confidence(model: str, trials: Sequence[TrialResult], undecided: int) -> Fastest:
    """Find a model's fastest trial among the trials of a run, which may be of several models.

    This is a field of results.json, which verifiers recompute: it is the fastest by its figure, with or
    without marks.
    """
    of_model = [trial for trial in trials if trial.model == model]
    best, others = _fastest_and_others(of_model, marked=())
    if best is None:
        return Fastest(model, None, undecided, None)
    certainty = confidence(best[0], [days for days, _ in others], process_spread(trials).spread)
    return Fastest(model, best[1].id, undecided, certainty)


def process_spread(trials: Iterable[TrialResult]) -> ProcessSpread:
    """Estimate the spread from the trials of all models of a run: one machine measured all of them."""
    pairs = [
        (t.earlier, t.estimate.days) for t in trials if t.earlier and t.estimate and t.estimate.plausible
    ]
    differences = [math.log(earlier.value / later.value) for earlier, later in pairs]
    # A difference has two causes: the uncertainty of both measurements, and the spread of two processes.
    sigmas = [math.hypot(*(day.half_width / day.value * TO_SIGMA for day in pair)) for pair in pairs]
    excess = math.fsum((d**2 - sigma**2) / 2 for d, sigma in zip(differences, sigmas, strict=True))
    variance = (PRIOR_PAIRS * BETWEEN_PROCESSES**2 + excess) / (PRIOR_PAIRS + len(pairs))
    spread = math.sqrt(max(variance, BETWEEN_PROCESSES**2))
    return ProcessSpread(len(pairs), max(map(abs, differences), default=0.0), spread)


def runner_up(
    model: str, trials: Sequence[TrialResult], marked: Container[str]
) -> tuple[float, TrialResult] | None:
    """Return (confidence, runner-up) if a model's fastest trial is less certain than CERTAIN; else None.

    The runner-up is the trial that is the fastest of the rest even at the upper end of its interval. `marked`
    has the ids of the trials with marks.
    """
    of_model = [trial for trial in trials if trial.model == model]
    best, others = _fastest_and_others(of_model, marked)
    if best is None:
        return None
    certainty = confidence(best[0], [days for days, _ in others], process_spread(trials).spread)
    if certainty >= CERTAIN:
        return None
    return certainty, min(others, key=lambda pair: pair[0].value + pair[0].half_width)[1]


def confidence(best: Interval, others: Sequence[Interval], spread: float = BETWEEN_PROCESSES) -> float:
    """Return the probability that no other time is below EQUAL_WITHIN of the best; times are independent."""
    return math.prod(_below(best.scaled(EQUAL_WITHIN), other, spread) for other in others)


def _below(interval: Interval, other: Interval, spread: float) -> float:
    """Return the probability that the first value is below the second, each with the spread of processes."""
    sigma = TO_SIGMA * math.hypot(interval.widened(spread).half_width, other.widened(spread).half_width)
    return 0.5 * (1 + math.erf((other.value - interval.value) / (sigma * math.sqrt(2))))


def without_figures(results: Results) -> dict[str, str]:
    """Return the reason for each model that has no fastest trial, keyed by the model's name."""
    return {
        model.name: _why_none(model.name, results)
        for model in results.models
        if not ranked(results.trials_of(model.name))
    }


def _why_none(model: str, results: Results) -> str:
    trials = results.trials_of(model)
    if not trials and any(winner.model == model and winner.undecided for winner in results.winners):
        return "none of its settings was measured before the run ended"
    if not trials:
        reasons = (skip.reason for skip in results.skipped if skip.model == model)
        return one_line(next(reasons, "nothing was tried"))
    last = trials[-1]
    if last.failure is not None:
        return failure_text(last.failure)
    if last.estimate is None:
        return "too few samples"
    return "wrong gradients" if (model, last.setting) in wrong_settings(trials) else "implausible"

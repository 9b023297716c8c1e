"""Decide when a trial is warm, when its measurement is good enough, and how many passes its steps take.

Pure: decides from the times measured so far, and the recipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.estimate import mean, step_interval
from bench.records.trial import StepSample, Timing
from bench.training.models import Recipe

WINDOW = 3  # steps; two adjacent windows must agree
MIN_AGREEMENT = 0.02  # largest difference of two windows, relative; the target interval if that is wider
MIN_ROUNDS = 5  # before a tight interval ends the measurement; a round has one step of each pass count
MIN_ROUNDS_AT_DEADLINE = 3  # before the end of the measuring time ends the measurement
UNRESOLVED_FACTOR = 4  # times the measuring time, for a trial whose passes and updates cannot be told apart
MAX_SAMPLES = 50_000  # steps of a trial: a verifier reads one line of limited length (bundle/tar_format.py)
RARE_EVALUATION = 3e-4  # evaluated samples per trained sample: at most 0.1% of the time
# Share of the measuring time for one step at the high pass count. A pass is the difference of two steps,
# whose errors matter less the more passes lie between them: few long steps beat many short ones.
MAX_STEP_SHARE = 1 / 5
LONG_PASS = 1 / 6  # share of the measuring time; a step has at least 2 longer passes, or 3 shorter ones


def is_steady(seconds: Sequence[float], timing: Timing) -> bool:
    """True once the last two windows of steps took the same time."""
    if len(seconds) < 2 * WINDOW:
        return False
    before, after = mean(seconds[-2 * WINDOW : -WINDOW]), mean(seconds[-WINDOW:])
    return abs(after - before) <= max(MIN_AGREEMENT, timing.target_percent / 100) * before


def accumulation_counts(
    recipe_accumulation: int, pass_seconds: float, update_seconds: float, timing: Timing, even_from: int = 1
) -> tuple[int, ...]:
    """Return the two pass counts to measure, low and high; (1,) if the recipe's step is one pass.

    Low is one pass, or `even_from` if a step of fewer passes lacks something that all longer ones have. High
    is as many as the time allows, at most the recipe's. An update on the host may take longer than passes,
    and then varies more: a step may take twice the update's time, within the measuring time.
    """
    low = even_from if recipe_accumulation > even_from else 1
    seconds = max(MAX_STEP_SHARE * timing.measure_seconds, min(2 * update_seconds, timing.measure_seconds))
    min_passes = 2 if pass_seconds > LONG_PASS * timing.measure_seconds else 3
    difference = max(min_passes, int(seconds / pass_seconds)) - 1  # passes between the two counts
    high = min(recipe_accumulation, low + difference)
    return (1,) if recipe_accumulation == 1 else (low, high)


def is_enough(samples: Sequence[StepSample], accumulation: int, elapsed: float, timing: Timing) -> bool:
    """Whether the interval is tight enough or the time is up.

    False before a few rounds; True after as many samples as a bundle may hold.
    """
    if len(samples) >= MAX_SAMPLES:
        return True
    interval = step_interval(samples, accumulation)
    rounds = len(samples) // max(1, len({sample.accumulation for sample in samples}))
    patience = timing.measure_seconds * (UNRESOLVED_FACTOR if interval is None else 1)
    is_tight = interval is not None and interval.percent <= timing.target_percent
    if elapsed >= patience:
        return rounds >= MIN_ROUNDS_AT_DEADLINE
    return is_tight and rounds >= MIN_ROUNDS


def evaluates_rarely(recipe: Recipe) -> bool:
    """Whether the recipe evaluates so rarely that an upper bound on the time is enough."""
    trained = (recipe.eval_every_steps or 0) * recipe.batch_size
    return bool(trained and recipe.eval_samples) and (recipe.eval_samples or 0) < RARE_EVALUATION * trained

"""When a measurement is warm, when it is good enough, and how many passes its steps take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.estimate import step_interval
from bench.records.statistics import mean
from bench.records.trial import StepSample, Timing
from bench.training.models import Recipe

WINDOW = 3  # steps; two adjacent windows must agree
AGREEMENT = 0.02  # of their mean; more where the wanted interval is wider than that
ROUNDS = 5  # before a tight interval is believed
LATE_ROUNDS = 3  # before the time that is up ends it
PATIENCE = 4  # times the measuring time, where more passes do not take longer yet: then it stays untold
MOST_SAMPLES = (
    50_000  # whoever verifies reads a trial's as one line, and no longer ones (bench/bundle/tar_format.py)
)
RARE = 3e-4  # evaluated samples, of those trained on: at most 0.1% of the time
# Of the measuring time, for one step at the high count. A pass is the difference of two steps, and what one
# of them is off by is the less of a pass the further they lie apart: few long steps beat many short ones.
MAX_STEP_SHARE = 1 / 5
# A step of the loss curve: so many samples whatever the micro-batch, as near as it divides, and fewer where
# they are more arithmetic than a slow card does in half a minute: it would time out before it is measured.
LOSS_SAMPLES, LOSS_FLOPS = 64, 1e15
DEAR = 1 / 6  # of the measuring time, for one pass: from there on two passes must do, else three


def is_steady(seconds: Sequence[float], timing: Timing) -> bool:
    """True once the last two windows of steps took the same time."""
    if len(seconds) < 2 * WINDOW:
        return False
    before, after = mean(seconds[-2 * WINDOW : -WINDOW]), mean(seconds[-WINDOW:])
    return abs(after - before) <= max(AGREEMENT, timing.target_percent / 100) * before


def loss_samples(parameters: int, recipe: Recipe) -> int:
    """A power of two, for most micro-batches to divide, and of the model alone, for runs to be compared."""
    each = 6 * parameters * recipe.units_per_sample  # an addition and a product a weight, and twice that back
    return 1 << (max(1, min(LOSS_SAMPLES, int(LOSS_FLOPS / each))).bit_length() - 1)


def accumulation_counts(
    recipe_accumulation: int, pass_seconds: float, update_seconds: float, timing: Timing, even_from: int = 1
) -> tuple[int, ...]:
    """One pass, and as many as the time allows up to what the recipe does; of the recipe's own, or on a line.

    The line begins where passes are even: a step of fewer than `even_from` lacks something that all longer
    ones have once. An update that takes longer than passes do, on the host, scatters by more too: then passes
    of twice its time, up to the whole measuring time.
    """
    low = even_from if recipe_accumulation > even_from else 1
    seconds = max(MAX_STEP_SHARE * timing.measure_seconds, min(2 * update_seconds, timing.measure_seconds))
    least = 2 if pass_seconds > DEAR * timing.measure_seconds else 3
    apart = max(least, int(seconds / pass_seconds)) - 1  # what tells a pass, wherever the line begins
    high = min(recipe_accumulation, low + apart)
    return (1,) if recipe_accumulation == 1 else (low, high)


def is_enough(samples: Sequence[StepSample], accumulation: int, elapsed: float, timing: Timing) -> bool:
    """Tight enough, or out of time; never before a handful of rounds, nor after more than can be read."""
    if len(samples) >= MOST_SAMPLES:
        return True
    interval = step_interval(samples, accumulation)
    rounds = len(samples) // max(1, len({sample.accumulation for sample in samples}))
    if interval is None:
        return elapsed >= PATIENCE * timing.measure_seconds and rounds >= LATE_ROUNDS
    late = elapsed >= timing.measure_seconds and rounds >= LATE_ROUNDS
    return late or (rounds >= ROUNDS and interval.percent <= timing.target_percent)


def evaluates_rarely(recipe: Recipe) -> bool:
    """So rarely that a bound on its time is enough."""
    trained = (recipe.eval_every_steps or 0) * recipe.batch_size
    return bool(trained and recipe.eval_samples) and (recipe.eval_samples or 0) < RARE * trained

"""Estimate a recipe's days from raw samples. Pure arithmetic; the runner and the verifier both call it.

A step of A passes takes  update + A * pass.  Two accumulation counts, low < high, give the line: its slope
is one pass, its intercept the update with the extra cost of the synchronised pass. A recipe's step is a
weighted sum of the two means, which gives the step's interval too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.base.frozen import dataclass
from bench.records.products import Products
from bench.records.trial import Ceiling, Measurement, StepSample, Trial
from bench.training.models import Flops, Model

SECONDS_A_DAY = 86_400
# Standard deviation of the time between processes that train the same, as a share of the time; it widens a
# trial's own interval (docs/accuracy.md).
BETWEEN_PROCESSES = 0.005
TO_SIGMA = 1 / 1.96  # from the half-width of a 95% interval to a standard deviation
# Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the half-width of its 95% interval."""

    value: float
    half_width: float

    def scaled(self, factor: float) -> Interval:
        """Multiply mean and half-width by a factor above zero, as a change of unit does."""
        return Interval(self.value * factor, self.half_width * factor)

    def shifted(self, offset: float) -> Interval:
        """Add a constant without uncertainty to the mean."""
        return Interval(self.value + offset, self.half_width)

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value + self.half_width

    @property
    def percent(self) -> float:
        """The half-width in percent of the mean."""
        return 100 * self.half_width / self.value

    @property
    def of_another_process(self) -> Interval:
        """The interval for another process of the same training, on this machine or an equal one."""
        return self.widened(BETWEEN_PROCESSES)

    def widened(self, spread: float) -> Interval:
        """Widen the interval by a spread between processes: a standard deviation, as a share of the value."""
        return Interval(self.value, math.hypot(self.half_width, spread / TO_SIGMA * self.value))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A trial's step, days and rates, computed from its samples."""

    step_seconds: Interval  # one recipe step, without saving, evaluating and logging
    pass_seconds: float | None  # None: a step is one pass, and nothing tells pass and update apart
    update_seconds: float | None  # with the extra cost of the synchronised pass
    overhead_seconds: float  # saving, evaluating and logging, per step
    units_per_second: float  # tokens or images, overhead included
    days: Interval
    flops_per_second: float  # the model's own arithmetic, without recomputation
    ceiling_flops_per_second: float | None
    peak_bytes: int

    @property
    def utilisation(self) -> float | None:
        """Rate of the model's own arithmetic, as a share of the machine's best rate of matrix products."""
        ceiling = self.ceiling_flops_per_second
        return self.flops_per_second / ceiling if ceiling else None

    @property
    def positive(self) -> bool:
        """Whether the step, its days and its rates are above zero: training takes time."""
        figures = (self.step_seconds.value, self.days.value, self.units_per_second, self.flops_per_second)
        return min(figures) > 0

    @property
    def plausible(self) -> bool:
        """False if the figure implies more arithmetic than the machine can do: a defect of bench."""
        return self.positive and (self.utilisation is None or 0 < self.utilisation <= 1.0)


def step_interval(samples: Iterable[StepSample], accumulation: int) -> Interval | None:
    """Compute the interval of a step at the recipe's accumulation.

    None if a needed accumulation count has fewer than two samples, or if a pass seems to take no time.
    """
    return _interval(_by_accumulation(samples), accumulation)


Groups = Mapping[int, Sequence[float]]  # seconds of steps, by accumulation


def _interval(groups: Groups, accumulation: int) -> Interval | None:
    weights = _weights(tuple(groups), accumulation)
    if weights is None or any(len(groups[count]) < 2 for count in weights):
        return None
    if len(weights) > 1 and _line(groups) == (None, None):
        return None
    parts = [(weight, groups[count]) for count, weight in weights.items()]
    value = math.fsum(weight * mean(seconds) for weight, seconds in parts)
    errors = [(weight**2 * variance(seconds) / len(seconds), len(seconds) - 1) for weight, seconds in parts]
    total = math.fsum(error for error, _ in errors)
    if total == 0:
        return Interval(value, 0.0)
    # Welch-Satterthwaite: the variances of the two counts differ.
    degrees = total**2 / math.fsum(error**2 / n for error, n in errors)
    return Interval(value, quantile95(degrees) * math.sqrt(total))


def _by_accumulation(samples: Iterable[StepSample]) -> dict[int, list[float]]:
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for sample in samples:
        groups[sample.accumulation].append(sample.seconds)
    return dict(sorted(groups.items()))


def _weights(counts: tuple[int, ...], accumulation: int) -> dict[int, float] | None:
    """Weigh each count's mean in a step at `accumulation`; None if the counts do not determine the step."""
    if accumulation in counts:
        return {accumulation: 1.0}
    if len(counts) < 2:
        return None
    low, high = counts[0], counts[-1]
    share = (accumulation - low) / (high - low)
    return {low: 1.0 - share, high: share}


def pass_and_update(samples: Iterable[StepSample]) -> tuple[float, float] | tuple[None, None]:
    """Return the seconds of a pass and of an update; (None, None) if the samples do not tell them apart."""
    return _line(_by_accumulation(samples))


def _line(groups: Groups) -> tuple[float, float] | tuple[None, None]:
    """Return the seconds of a pass and of an update; (None, None) too if more passes take no longer."""
    if len(groups) < 2:
        return None, None
    low, high = min(groups), max(groups)
    slope = (mean(groups[high]) - mean(groups[low])) / (high - low)
    return (slope, mean(groups[low]) - low * slope) if slope > 0 else (None, None)


def ceiling_precisions(model: Model, setting: tuple[str, ...]) -> tuple[str, ...]:
    """Return the precisions in which a trial may multiply; no trial exceeds the fastest products in them."""
    precision = model.recipe.precision
    if precision == "fp8":  # some products of such a recipe multiply in bf16, which on a CPU is faster
        return "fp8", "bf16"
    return ("tf32" if precision == "fp32" and "tf32" in setting else precision,)


def ceiling_of(trial: Trial, ceilings: Iterable[Ceiling], products: Sequence[Products] = ()) -> float | None:
    """Return the best rate of plain matrix products on all GPUs of a trial; None if none was measured.

    If it is known what a pass multiplies, each part has the rate of its own precision, as far as the recipe
    names this precision: in fp8, gradients of weights have the rate of bf16.
    """
    known = list(ceilings)
    precisions = ceiling_precisions(trial.model, trial.setting)
    found = {name: ceiling_rate(known, f"matmul-{name}", trial.gpus) for name in precisions}
    rates = {name: rate for name, rate in found.items() if rate}
    best = max(rates.values(), default=None)
    if best is None or len(rates) < 2 or not products:
        return best
    rates[precisions[0]] = best  # on a CPU, products in bf16 are faster than those in fp8
    parts = [part for part in products if part.kind != "scans"]
    seconds = math.fsum(part.operations / rates.get(part.precision, best) for part in parts)
    return sum(part.operations for part in parts) / seconds


def ceiling_rate(ceilings: Iterable[Ceiling], name: str, gpus: int) -> float | None:
    """Add up the best rates of the `gpus` fastest devices; None if no ceiling has this name."""
    best: dict[int, float] = {}
    for ceiling in ceilings:
        if ceiling.name == name:
            best[ceiling.device] = max(best.get(ceiling.device, 0.0), ceiling.rate)
    return math.fsum(sorted(best.values(), reverse=True)[:gpus]) if best else None


def overhead_seconds(measurement: Measurement, model: Model) -> float:
    """Add up the seconds of saving, evaluating and logging per step, at the recipe's frequencies."""
    recipe = model.recipe
    eval_seconds = None
    if measurement.eval_seconds_per_sample is not None and recipe.eval_samples:
        eval_seconds = measurement.eval_seconds_per_sample * recipe.eval_samples
    parts = (
        (measurement.log_seconds, recipe.log_every_steps),
        (measurement.save_seconds, recipe.save_every_steps),
        (eval_seconds, recipe.eval_every_steps),
    )
    return math.fsum(seconds / every for seconds, every in parts if seconds is not None and every)


def estimate(
    trial: Trial, measurement: Measurement, flops: Flops, ceilings: Iterable[Ceiling]
) -> Estimate | None:
    """Estimate a trial from its measurement; None if there are too few samples for an interval."""
    groups = _by_accumulation(measurement.steps)
    step = _interval(groups, trial.accumulation)
    if step is None:
        return None
    recipe = trial.model.recipe
    overhead = overhead_seconds(measurement, trial.model)
    step_with_overhead = step.shifted(overhead)
    one_pass, update = _line(groups)
    return Estimate(
        step_seconds=step,
        pass_seconds=one_pass,
        update_seconds=update,
        overhead_seconds=overhead,
        units_per_second=recipe.batch_size * recipe.units_per_sample / step_with_overhead.value,
        days=step_with_overhead.scaled(recipe.steps / SECONDS_A_DAY),
        flops_per_second=flops.training * recipe.batch_size / step.value,
        ceiling_flops_per_second=ceiling_of(trial, ceilings, measurement.products),
        peak_bytes=measurement.peak_bytes,
    )


def loss_difference(measurement: Measurement, naive: Measurement) -> float | None:
    """Return the largest relative difference of the first losses; None if they are over different samples."""
    if measurement.samples_per_loss != naive.samples_per_loss or not measurement.losses:
        return None
    pairs = zip(measurement.losses, naive.losses, strict=False)
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)


def quantile95(degrees: float) -> float:
    """Return the two-sided 95% quantile of Student's t, for any number of degrees of freedom.

    The function is continuous, so that a rounding error on another machine cannot make the result jump.
    """
    if degrees < len(_T95):
        below = max(1, math.floor(degrees))
        share = max(0.0, degrees - below)
        return _T95[below - 1] * (1 - share) + _T95[below] * share
    # Above the table: the expansion in 1/degrees, good to 0.02%.
    return 1.959964 + 2.3723 / degrees + 2.8225 / degrees**2


def mean(values: Sequence[float]) -> float:
    """Return the mean, whose sum is exact before it is rounded; the values must not be empty."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance: the sum of squares is divided by one less than the number of values."""
    centre = mean(values)
    return math.fsum([(v - centre) ** 2 for v in values]) / (len(values) - 1)

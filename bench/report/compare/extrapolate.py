"""Estimate the days on a machine that was not measured: its vendor's peak at the efficiency of measured rows.

In: measured rows and a target machine. Out: a `Guess`, never ranked among measurements. Pure.

The error bar comes from held-out rows: the same rule estimates each of them from the others, and its errors
make the bar. For a kind of GPU that was measured, single rows are held out; for a new kind, all rows of it.
For another number of GPUs, a row is estimated only from rows whose numbers of GPUs differ by as large a
factor: rows of one GPU do not show the cost of communication. Fewer than `LEAST_HELD_OUT` rows make no bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.base.gpu_catalogue import GpuModel
from bench.base.sizes import bytes_text
from bench.base.strict_json import later
from bench.records.estimate import SECONDS_A_DAY, quantile95

LEAST_HELD_OUT = 3  # with fewer rows there is no error bar


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A measured row, as evidence for estimates."""

    model: str
    family: str
    gpu: GpuModel
    gpus: int
    precision: str
    tf32: bool
    flops: float  # of the whole recipe
    days: float
    peak_bytes: int | None = None  # of a GPU's memory

    @property
    def efficiency(self) -> float:
        """Share of the vendor's peak that the training reached."""
        return peak_days(self.flops, self.gpu, self.gpus, self.precision, tf32=self.tf32) / self.days


@dataclass(frozen=True, slots=True)
class Guess:
    """The days of one model on a machine that was not measured, and what they are based on."""

    gpu: str
    gpus: int
    at_peak_days: float  # no machine of this kind is faster
    days: float | None  # at the efficiency of the nearest row; None if no row of the family was measured
    low_days: float | None  # 95% interval; None if too few rows can be held out
    high_days: float | None
    held_out: int  # rows behind the interval
    basis: str  # the nearest row, or why there is no such row
    predicted: bool = later(False)  # by the predictor, whose interval holds nine of ten
    impossible: bool = later(False)  # the machine cannot train the recipe

    @property
    def least_days(self) -> float:
        """The lower end of the interval; without an interval, the days at the vendor's peak."""
        return self.at_peak_days if self.low_days is None else self.low_days


def peak_days(flops: float, gpu: GpuModel, gpus: int, precision: str, *, tf32: bool) -> float:
    """Return the days that `flops` operations take at the vendor's peak."""
    return flops / (gpu.peak_flops(precision, tf32=tf32) * gpus * SECONDS_A_DAY)


def extrapolate(
    target: GpuModel, gpus: int, family: str, precision: str, flops: float, evidence: Sequence[MeasuredRow]
) -> Guess:
    """Estimate one model's training, of `flops` in all, on `gpus` GPUs of the target kind."""
    at_peak = peak_days(flops, target, gpus, precision, tf32=True)
    if precision == "fp8" and target.fp8_tflops is None:
        reason = "it cannot train this recipe: its units do not multiply in fp8"
        return Guess(target.name, gpus, at_peak, None, None, None, 0, reason, impossible=True)
    nearest = _nearest(target, family, precision, gpus, flops, evidence)
    if nearest is None:
        return Guess(target.name, gpus, at_peak, None, None, None, 0, f"no {family} was measured")
    days = _as_efficient(flops, target, gpus, precision, nearest)
    known_kind = nearest.gpu.name == target.name
    errors = held_out_errors(evidence, family, known_kind=known_kind, apart=_factor(gpus, nearest.gpus))
    low = high = None
    if len(errors) >= LEAST_HELD_OUT:
        # Errors of rows of one kind are correlated: for a new kind, only each kind counts as independent.
        kinds = len({e.gpu.name for e in evidence if e.family == family})
        factor = math.exp(_half_width(errors, len(errors) if known_kind else kinds))
        low, high = max(days / factor, at_peak), days * factor
    basis = ", ".join(_basis(target, gpus, precision, nearest))
    return Guess(target.name, gpus, at_peak, days, low, high, len(errors), basis)


def _basis(target: GpuModel, gpus: int, precision: str, nearest: MeasuredRow) -> Iterator[str]:
    """Yield the nearest row, then every assumption beyond that row."""
    yield f"{nearest.model} on {nearest.gpus}x {nearest.gpu.name}"
    yield f"{100 * nearest.efficiency:.0f}% of the vendor's peak"
    if _units(nearest.precision) != _units(precision):
        yield f"reached in {nearest.precision} and assumed for {precision}"
    if gpus > nearest.gpus:
        there = "one alone" if nearest.gpus == 1 else f"each of {nearest.gpus}"
        yield f"assuming that each of {gpus} GPUs is as fast as {there}"
    if nearest.peak_bytes and nearest.peak_bytes > target.memory_gib * 2**30:
        needed = f"{bytes_text(nearest.peak_bytes)} of a GPU's memory"
        yield f"with {needed}: this GPU has {target.memory_gib:g}, and a setting that fits may be slower"


def _as_efficient(flops: float, gpu: GpuModel, gpus: int, precision: str, nearest: MeasuredRow) -> float:
    """Return the days if these GPUs reach the same share of their peak as those of `nearest` reached."""
    return peak_days(flops, gpu, gpus, precision, tf32=nearest.tf32) / nearest.efficiency


def _nearest(
    target: GpuModel, family: str, precision: str, gpus: int, flops: float, evidence: Iterable[MeasuredRow]
) -> MeasuredRow | None:
    """Find the nearest row of the family: by kind of GPU, then by its generation, precision and size."""
    same_family = [e for e in evidence if e.family == family]

    def distance(e: MeasuredRow) -> tuple[bool, bool, bool, float, str]:
        size = abs(math.log(e.flops / flops)) + abs(math.log(e.gpus / gpus))
        generation = e.gpu.compute_capability != target.compute_capability
        units = _units(e.precision) != _units(precision)  # different units, of another efficiency
        return e.gpu.name != target.name, generation, units, size, e.model

    return min(same_family, key=distance, default=None)


def _units(precision: str) -> str:
    """Return the precision for which its matrix units are named: fp16 multiplies on those of bf16."""
    return "bf16" if precision == "fp16" else precision


def _factor(a: int, b: int) -> float:
    return max(a, b) / min(a, b)


def held_out_errors(
    evidence: Sequence[MeasuredRow], family: str, *, known_kind: bool, apart: float = 1.0
) -> list[float]:
    """Return ln(estimated / measured) of each row of this family that other rows can estimate.

    With `known_kind`, from the other rows of the same kind of GPU; otherwise from rows of all other kinds.
    Only rows whose number of GPUs differs by the factor `apart` or more are used.
    """
    errors = []
    for row in (e for e in evidence if e.family == family):
        others = [e for e in evidence if e is not row and (e.gpu.name == row.gpu.name) == known_kind]
        others = [e for e in others if _factor(e.gpus, row.gpus) >= apart]
        nearest = _nearest(row.gpu, row.family, row.precision, row.gpus, row.flops, others)
        if nearest is not None:
            estimated = _as_efficient(row.flops, row.gpu, row.gpus, row.precision, nearest)
            errors.append(math.log(estimated / row.days))
    return errors


def _half_width(errors: Sequence[float], independent: int) -> float:
    """Return the 95% half-width of a new row's error. It is taken around 0, so that a bias widens it, too."""
    spread = math.sqrt(math.fsum(e * e for e in errors) / len(errors))
    return quantile95(independent) * spread * math.sqrt(1 + 1 / independent)

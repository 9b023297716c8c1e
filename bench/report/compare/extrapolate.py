"""What a machine that was not measured would take: at the vendor's peak, and as efficient as what was.

Always an estimate, and never ranked among measurements. Its error bar is what the same rule gets wrong on
rows that it is not shown: of the same kind of GPU, or, for a kind that was not measured, of kinds left out;
and, for another number of GPUs, from rows whose numbers are as many times apart: what GPUs lose to each other
is in no row of one. Where fewer than three rows can be held out, there is no bar, and that is said. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.base.gpu_catalogue import GpuModel
from bench.records.estimate import SECONDS_A_DAY
from bench.records.statistics import quantile95

LEAST = 3  # rows held out, from which on their errors say something


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured row."""

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
        """Share of the vendor's peak."""
        return peak_days(self.flops, self.gpu, self.gpus, self.precision, self.tf32) / self.days


@dataclass(frozen=True, slots=True)
class Extrapolation:
    gpu: str
    gpus: int
    at_peak_days: float  # no machine of this kind is faster
    days: float | None  # calibrated; None without a row to go by
    low_days: float | None  # 95%, by rows held out; None where there are too few
    high_days: float | None
    held_out: int  # rows behind the interval
    basis: str  # which row, or why there is none


def peak_days(flops: float, gpu: GpuModel, gpus: int, precision: str, tf32: bool) -> float:
    return flops / (gpu.peak_flops(precision, tf32) * gpus * SECONDS_A_DAY)


def extrapolate(
    target: GpuModel, gpus: int, family: str, precision: str, flops: float,
    evidence: Sequence[MeasuredRow],
) -> Extrapolation:  # fmt: skip
    """For one model on so many of a kind of GPU."""
    at_peak = peak_days(flops, target, gpus, precision, tf32=True)
    nearest = _nearest(target, family, precision, gpus, flops, evidence)
    if nearest is None:
        return Extrapolation(target.name, gpus, at_peak, None, None, None, 0, f"no {family} was measured")
    days = _as_efficient(flops, target, gpus, precision, nearest)
    known = nearest.gpu.name == target.name
    errors = held_out_errors(evidence, family, known_kind=known, apart=_times(gpus, nearest.gpus))
    low = high = None
    if len(errors) >= LEAST:
        # Rows of one kind of GPU err together: of unknown kinds there are as many errors as kinds.
        kinds = len({e.gpu.name for e in evidence if e.family == family})
        factor = math.exp(_half_width(errors, len(errors) if known else kinds))
        low, high = max(days / factor, at_peak), days * factor
    basis = ", ".join(_basis(target, gpus, precision, nearest))
    return Extrapolation(target.name, gpus, at_peak, days, low, high, len(errors), basis)


def _basis(target: GpuModel, gpus: int, precision: str, nearest: MeasuredRow) -> Iterator[str]:
    """The row, and what is taken for granted beyond it."""
    yield f"{nearest.model} on {nearest.gpus}x {nearest.gpu.name}"
    yield f"{100 * nearest.efficiency:.0f}% of the vendor's peak"
    if _in_half(nearest.precision) != _in_half(precision):
        yield f"which is {nearest.precision}'s there, and {precision}'s here"
    if gpus > nearest.gpus:
        yield f"as if {gpus} GPUs lost nothing to each other that {nearest.gpus} did not"
    if nearest.peak_bytes and nearest.peak_bytes > target.memory_gib * 2**30:
        needed = f"{nearest.peak_bytes / 2**30:.1f} GiB of a GPU's memory"
        yield f"with {needed}: this one has {target.memory_gib:g}, and what fits may be slower"


def _as_efficient(flops: float, gpu: GpuModel, gpus: int, precision: str, nearest: MeasuredRow) -> float:
    """Days at the share of its peak that the row reached, on the units that the row used: TF32 or not."""
    return peak_days(flops, gpu, gpus, precision, nearest.tf32) / nearest.efficiency


def _nearest(
    target: GpuModel, family: str, precision: str, gpus: int, flops: float, evidence: Iterable[MeasuredRow]
) -> MeasuredRow | None:
    """Of the same family: the same kind of GPU, then a like one, then as precise, then the nearest size."""
    alike = [e for e in evidence if e.family == family]

    def distance(e: MeasuredRow) -> tuple[bool, bool, bool, float, str]:
        size = abs(math.log(e.flops / flops)) + abs(math.log(e.gpus / gpus))
        generation = e.gpu.compute_capability != target.compute_capability
        units = _in_half(e.precision) != _in_half(precision)  # their peaks are reached to different shares
        return e.gpu.name != target.name, generation, units, size, e.model

    return min(alike, key=distance, default=None)


def _in_half(precision: str) -> bool:
    return precision != "fp32"


def _times(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def held_out_errors(
    evidence: Sequence[MeasuredRow], family: str, *, known_kind: bool, apart: float = 1.0
) -> list[float]:
    """ln(estimated / measured) of each row of this family that the others can estimate.

    With `known_kind` a row alone is left out; otherwise all rows of its kind of GPU are. Of the others those
    count that have `apart` times as many GPUs or more, or as few.
    """
    errors = []
    for row in evidence:
        if row.family != family:
            continue
        if known_kind:
            shown = [e for e in evidence if e is not row and e.gpu.name == row.gpu.name]
        else:
            shown = [e for e in evidence if e.gpu.name != row.gpu.name]
        shown = [e for e in shown if _times(e.gpus, row.gpus) >= apart]
        nearest = _nearest(row.gpu, row.family, row.precision, row.gpus, row.flops, shown)
        if nearest is not None:
            estimated = _as_efficient(row.flops, row.gpu, row.gpus, row.precision, nearest)
            errors.append(math.log(estimated / row.days))
    return errors


def _half_width(errors: Sequence[float], independent: int) -> float:
    """Of a further row's error around nothing: a bias widens it too."""
    spread = math.sqrt(math.fsum(e * e for e in errors) / len(errors))
    return quantile95(independent) * spread * math.sqrt(1 + 1 / independent)

"""Refuse trials that the telemetry of their own GPUs contradicts: clock, power and energy. Pure.

In: the readings of telemetry.jsonl, and the rate of each trial on one GPU. Out: VerificationFailed for a rate
that a GPU cannot reach at the clock or the power that it reported, or for more energy than its board draws.
Only GPUs that trained and that the catalogue knows are judged, each by itself, and only by what they report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.bundle.physical_limits import MAX_SHARE_OF_PEAK
from bench.records.marks import AROUND_SECONDS
from bench.records.slowdown import TrialReading
from bench.records.trial import Gpu

# No GPU of the catalogue has a lower clock at its vendor's peak. A GPU may lower its clock for the whole run,
# so that the highest clock of the telemetry alone would say nothing.
LEAST_PEAK_MHZ = 1200
MAX_SHARE_OF_BOARD = 1.5  # of the board's power limit, which some vendors raise; honest GPUs reach 1.02
# Largest rate as a share of the peak, divided by the power as a share of the board's limit. Honest GPUs reach
# 1.5, and an idle GPU draws 0.1 of its limit.
MAX_RATE_BY_POWER = 4.0
MOST_WATTS = 10_000  # of one GPU: a larger value is a broken counter, whose energy no report shows
LEAST_SECONDS = 3.0  # of energy counters: they advance in steps


@dataclass(frozen=True, slots=True)
class ClaimedRate:
    """A trial's rate on each of its GPUs, and the span of its timed steps in unix seconds."""

    started_at: float
    ended_at: float
    flops_per_second: float
    peaks: tuple[float, ...]  # of products in the trial's precision, for each GPU that trained


@dataclass(slots=True)
class _GpuReadings:
    """The readings of one GPU while one trial was timed."""

    top_mhz: float = 0.0
    top_watts: float = 0.0
    energy: list[tuple[float, float]] = field(default_factory=list)  # (time, joules): the first and the last

    def add(self, at: float, reading: Mapping[str, Any]) -> None:
        """Keep the highest clock and power, and the energy of the first and of this reading."""
        self.top_mhz = max(self.top_mhz, _number(reading, "sm_mhz"))
        self.top_watts = max(self.top_watts, _number(reading, "power_watts"))
        if "energy_joules" in reading:
            self.energy[1:] = [(at, _number(reading, "energy_joules"))]

    @property
    def bounds_rate(self) -> bool:
        """Whether the GPU reported anything that bounds its rate."""
        return bool(self.top_mhz or self.top_watts or self.mean_watts)

    @property
    def mean_watts(self) -> float | None:
        """The power by the energy counter; None if it is broken, or without readings far enough apart."""
        if len(self.energy) < 2 or self.energy[1][0] - self.energy[0][0] < LEAST_SECONDS:
            return None
        (began, before), (ended, after) = self.energy
        watts = (after - before) / (ended - began)
        return watts if 0 < watts < MOST_WATTS else None


def require_telemetry(
    readings: Iterable[TrialReading], timed: Mapping[str, ClaimedRate], trained: Sequence[Gpu]
) -> frozenset[str]:
    """Refuse a trial whose rate its GPUs' readings contradict; `timed` is keyed by trial id.

    Returns the trials that nothing bounds, because one of their GPUs reported neither clock nor power.
    """
    courses: dict[tuple[str, int], _GpuReadings] = defaultdict(_GpuReadings)
    top_mhz: dict[int, float] = defaultdict(float)
    for reading in readings:
        at, trial = reading.at, timed.get(reading.trial)
        for index, figures in enumerate(reading.gpus[: len(trained)]):
            top_mhz[index] = max(top_mhz[index], _number(figures, "sm_mhz"))
            if trial and trial.started_at - AROUND_SECONDS <= at <= trial.ended_at + AROUND_SECONDS:
                courses[reading.trial, index].add(at, figures)
    for (name, index), course in courses.items():
        model = gpu_named(trained[index].name)
        peak = timed[name].peaks[index]
        if model and (
            why := _contradiction(timed[name].flops_per_second, peak, course, top_mhz[index], model)
        ):
            raise VerificationFailed(f"trial {name}: GPU {index} {why}", where="telemetry.jsonl")
    bounded = {key for key, course in courses.items() if course.bounds_rate}
    return frozenset(
        name for name in timed if any((name, index) not in bounded for index in range(len(trained)))
    )


def _contradiction(
    flops: float, peak: float, course: _GpuReadings, top_mhz: float, model: GpuModel
) -> str | None:
    """Say why a GPU's readings do not agree with a rate of `flops` a second; None if they do."""
    rate = f"computed {flops / 1e12:,.0f} TFLOP/s"
    clock = course.top_mhz / max(top_mhz, LEAST_PEAK_MHZ)
    if course.top_mhz and flops > MAX_SHARE_OF_PEAK * peak * clock:
        return f"{rate} at {course.top_mhz:,.0f} MHz, which it cannot"
    mean = course.mean_watts
    if not model.watts or (mean is None and not course.top_watts):
        return None
    if mean is not None and mean > MAX_SHARE_OF_BOARD * model.watts:
        return f"drew {mean:,.0f} W; the limit of an {model.name} is {model.watts:,.0f}"
    watts = max(course.top_watts, mean or 0.0)
    if flops > MAX_RATE_BY_POWER * peak * watts / model.watts:
        return f"{rate} with {watts:,.0f} W, which it cannot"
    return None


def _number(reading: Mapping[str, Any], name: str) -> float:
    """Return a value of a reading; 0 if the GPU does not report it, or reports no number."""
    value = reading.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0

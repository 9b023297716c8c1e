"""Find the trials during which heat or the power supply held a GPU back, by NVML's clock reasons.

In: telemetry.jsonl and the time span of each trial's steps. Out: a `Slowed` for each such trial, and its
text. Pure. The days of such a trial are right for this machine as it is; a GPU in good health is faster.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

from bench.base.frozen import dataclass
from bench.base.strict_json import DecodeError, strict_loads

# NVML's clock reasons that mean a fault. The power cap is not a fault: full load is meant to reach it.
BAD_REASONS: Mapping[int, tuple[str, Literal["warn", "fail"]]] = {
    0x08: ("hardware slowdown", "fail"),
    0x40: ("hardware thermal slowdown", "fail"),
    0x80: ("power brake", "fail"),
    0x20: ("software thermal slowdown", "warn"),
}
_BAD_BITS = sum(BAD_REASONS)
HEALTHY = "the same GPU in good health is faster, and bench check examines this one"
# Smallest share of readings that counts: a smaller one costs less than two processes differ anyway.
LEAST_SHARE = 0.01
Span = tuple[float, float]  # unix time
_REASONS_KEY = b'throttle_reasons":'
_REASONS = re.compile(_REASONS_KEY + rb"\s*(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Slowed:
    """The GPU that was held back most while a trial's steps were timed."""

    gpu: int
    why: tuple[str, ...]
    share: float  # of the readings
    sm_mhz: int | None  # median while held back; None: the GPU does not report it
    top_mhz: int | None  # the highest clock in this run
    celsius: int | None  # the highest while held back


def slowed_trials(
    read: Callable[[], Iterable[bytes]], spans: Mapping[str, Span], gpus: int
) -> Mapping[str, Slowed]:
    """Find the trials in which a GPU was held back while their steps were timed; keyed by trial id.

    `read` returns telemetry.jsonl in pieces of whole lines; the first `gpus` GPUs of a reading are those that
    trained. Lines that are no reading are left out: a run that was killed ends in half a line.
    """
    if not any(map(has_bad_reason, read())):
        return {}  # true of nearly every bundle; parsing all of its telemetry would take seconds
    courses: dict[str, dict[int, _Course]] = defaultdict(lambda: defaultdict(_Course))
    top_mhz: dict[int, int] = {}
    lines = (line for block in read() for line in block.split(b"\n"))
    for reading in filter(None, map(trial_reading, lines)):
        begun, ended = spans.get(reading.trial, (math.inf, -math.inf))
        for gpu, figures in enumerate(reading.gpus):
            if (mhz := _number(figures, "sm_mhz")) is not None:
                top_mhz[gpu] = max(mhz, top_mhz.get(gpu, 0))
            if begun <= reading.at <= ended and gpu < gpus:
                courses[reading.trial][gpu].add(figures)
    worst = {trial: _worst(course, top_mhz) for trial, course in courses.items()}
    return {trial: slowed for trial, slowed in worst.items() if slowed is not None}


def has_bad_reason(block: bytes) -> bool:
    """Whether any reading in a block of lines has a reason that means a fault.

    Searches the text of the whole block at once: ten times faster than decoding its lines.
    """
    return _REASONS_KEY in block and any(int(bits) & _BAD_BITS for bits in set(_REASONS.findall(block)))


class TrialReading(NamedTuple):
    """A reading of telemetry while a trial ran; of a GPU that gave none, the figures are empty."""

    at: float  # unix time
    trial: str
    gpus: list[Mapping[str, Any]]


def trial_reading(line: bytes) -> TrialReading | None:
    """Parse a line of telemetry; None if it is not a reading of a trial."""
    match telemetry_line(line):
        case {"at": int() | float() as at, "trial": str() as trial, "gpus": list() as gpus}:
            return TrialReading(at, trial, [gpu if isinstance(gpu, dict) else {} for gpu in gpus])
        case _:
            return None


def telemetry_line(line: bytes) -> Mapping[str, Any]:
    """Parse a line of telemetry; empty if it is not an object: a run that was killed ends in half a line."""
    try:
        document = strict_loads(line)
    except DecodeError:
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(slots=True)
class _Course:
    """The readings of one GPU while one trial's steps were timed."""

    readings: int = 0
    held_back: int = 0
    bits: int = 0
    mhz: list[int] = field(default_factory=list)
    celsius: list[int] = field(default_factory=list)

    def add(self, reading: Mapping[str, Any]) -> None:
        """Count a reading, and keep its figures if the GPU was held back; one without reasons is left out."""
        reasons = _number(reading, "throttle_reasons")
        if reasons is None:
            return
        self.readings += 1
        if not reasons & _BAD_BITS:
            return
        self.held_back += 1
        self.bits |= reasons
        if (mhz := _number(reading, "sm_mhz")) is not None:
            self.mhz.append(mhz)
        if (celsius := _number(reading, "celsius")) is not None:
            self.celsius.append(celsius)

    @property
    def share(self) -> float:
        """The share of readings in which the GPU was held back; 0 without readings."""
        return self.held_back / self.readings if self.readings else 0.0


def _worst(courses: Mapping[int, _Course], top_mhz: Mapping[int, int]) -> Slowed | None:
    """Describe the GPU that was held back most; None if it was in less than LEAST_SHARE of its readings."""
    from statistics import median  # slow to import, and few bundles need it

    gpu, course = max(courses.items(), key=lambda pair: pair[1].share)
    if course.share < LEAST_SHARE:
        return None
    return Slowed(
        gpu=gpu,
        why=tuple(words for bit, (words, _) in BAD_REASONS.items() if course.bits & bit),
        share=course.share,
        sm_mhz=round(median(course.mhz)) if course.mhz else None,
        top_mhz=top_mhz.get(gpu),
        celsius=max(course.celsius, default=None),
    )


def _number(reading: Mapping[str, Any], name: str) -> int | None:
    """Return a value of a reading; None if the GPU does not report it, or reports no natural number."""
    value = reading.get(name)
    return value if type(value) is int and value >= 0 else None


def slowed_text(slowed: Slowed) -> str:
    """Format as: GPU 0 by software thermal slowdown, 49% of the time, at 405 of its 1,980 MHz and 87 °C."""
    return f"GPU {slowed.gpu} by {' and '.join(slowed.why)}{_course_text([slowed])}"


def slowed_lines(slowed: Mapping[str, Slowed]) -> Iterator[str]:
    """Yield one line for each GPU that was held back, over all trials of a run."""
    for gpu in sorted({trial.gpu for trial in slowed.values()}):
        trials = [trial for trial in slowed.values() if trial.gpu == gpu]
        why = " and ".join(dict.fromkeys(reason for trial in trials for reason in trial.why))
        count = f"{len(trials)} trial{'s' * (len(trials) > 1)}"
        yield f"GPU {gpu} by {why} in {count}{_course_text(trials)}: {HEALTHY}"


def _course_text(trials: Sequence[Slowed]) -> str:
    """Format the share of the time, clocks and temperature of one GPU over several trials."""
    up_to = "up to " if len(trials) > 1 else ""
    text = ""
    if (share := max(trial.share for trial in trials)) < 1:
        text += f", {up_to}{100 * share:.2g}% of the time"
    clocks = [trial.sm_mhz for trial in trials if trial.sm_mhz is not None]
    top_clocks = [trial.top_mhz for trial in trials if trial.top_mhz is not None]
    heat = [trial.celsius for trial in trials if trial.celsius is not None]
    if clocks and top_clocks:
        low, high = min(clocks), max(clocks)
        text += f", at {low:,}" if low == high else f", at {low:,} to {high:,}"
        text += f" of its {max(top_clocks):,} MHz"
    if heat:
        text += f"{' and' if clocks and top_clocks else ', at'} {up_to}{max(heat)} °C"
    return text

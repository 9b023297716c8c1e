"""Held back while its steps were timed: a GPU says itself that heat, or its supply, slows it down. Pure.

Its days are true, of this machine as it is: the same GPU in good health is faster.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.base.strict_json import DecodeError, strict_loads

# Of NVML's reasons for a clock those that are a fault; the power cap is what full load is held to.
BAD_REASONS: Mapping[int, tuple[str, Literal["warn", "fail"]]] = {
    0x08: ("hardware slowdown", "fail"),
    0x40: ("hardware thermal slowdown", "fail"),
    0x80: ("power brake", "fail"),
    0x20: ("software thermal slowdown", "warn"),
}
_BAD = sum(BAD_REASONS)
HEALTHY = "the same GPU in good health is faster, and bench check examines this one"
LEAST_SHARE = 0.01  # of the readings: fewer cost no more than two processes differ by
Span = tuple[float, float]  # unix time
_REASONS = re.compile(rb'"throttle_reasons":\s*(\d{1,19})')


@dataclass(frozen=True, slots=True)
class Slowed:
    """The GPU that was held back most while a trial's steps were timed."""

    gpu: int
    why: tuple[str, ...]
    share: float  # of the readings
    sm_mhz: int | None  # while it was; None: it does not say
    top_mhz: int | None  # that it showed in this run
    celsius: int | None  # at the most


def slowed_trials(
    read: Callable[[], Iterable[bytes]], spans: Mapping[str, Span], gpus: int
) -> Mapping[str, Slowed]:
    """By trial; `read` gives the lines of telemetry.jsonl, whose first `gpus` are those that trained.

    A line that is no reading says nothing: a run that was killed left half of one.
    """
    if not any(int(bits) & _BAD for line in read() for bits in _REASONS.findall(line)):
        return {}  # as of nearly every bundle, and they may have many lines
    seen: dict[str, dict[int, _Course]] = defaultdict(lambda: defaultdict(_Course))
    top: dict[int, int] = {}
    for at, trial, said_by in filter(None, map(_reading, read())):
        begun, ended = spans.get(trial, (math.inf, -math.inf))
        for gpu, said in enumerate(said_by):
            if (mhz := _number(said, "sm_mhz")) is not None:
                top[gpu] = max(mhz, top.get(gpu, 0))
            if begun <= at <= ended and gpu < gpus:
                seen[trial][gpu].add(said)
    return {trial: worst for trial, course in seen.items() if (worst := _worst(course, top)) is not None}


def _reading(line: bytes) -> tuple[float, str, list[Any]] | None:
    try:
        found = strict_loads(line)
    except DecodeError:
        return None
    match found:
        case {"at": int() | float() as at, "trial": str() as trial, "gpus": list() as gpus}:
            return at, trial, gpus
        case _:
            return None


@dataclass(slots=True)
class _Course:
    """Of one GPU, while one trial's steps were timed."""

    readings: int = 0
    held_back: int = 0
    bits: int = 0
    mhz: list[int] = field(default_factory=list)
    celsius: list[int] = field(default_factory=list)

    def add(self, said: Mapping[str, Any]) -> None:
        reasons = _number(said, "throttle_reasons")
        if reasons is None:
            return
        self.readings += 1
        if not reasons & _BAD:
            return
        self.held_back += 1
        self.bits |= reasons
        self.mhz += [mhz for mhz in [_number(said, "sm_mhz")] if mhz is not None]
        self.celsius += [heat for heat in [_number(said, "celsius")] if heat is not None]

    @property
    def share(self) -> float:
        return self.held_back / self.readings if self.readings else 0.0


def _worst(courses: Mapping[int, _Course], top: Mapping[int, int]) -> Slowed | None:
    from statistics import median  # slow to import, and hardly a bundle needs it

    gpu, course = max(courses.items(), key=lambda pair: pair[1].share)
    if course.share < LEAST_SHARE:
        return None
    return Slowed(
        gpu,
        tuple(words for bit, (words, _) in BAD_REASONS.items() if course.bits & bit),
        course.share,
        round(median(course.mhz)) if course.mhz else None,
        top.get(gpu),
        max(course.celsius, default=None),
    )


def _number(said: Any, name: str) -> int | None:
    """What a card does not say is missing."""
    value = said.get(name) if isinstance(said, dict) else None
    return value if type(value) is int and value >= 0 else None


def slowed_text(slowed: Slowed) -> str:
    """GPU 0 by software thermal slowdown, 49% of the time, at 405 of its 1,980 MHz and 87 °C."""
    told = f"GPU {slowed.gpu} by {' and '.join(slowed.why)}"
    return told + "".join(_course_text([slowed]))


def slowed_lines(found: Mapping[str, Slowed]) -> Iterator[str]:
    """A line a GPU, of a whole run."""
    for gpu in sorted({one.gpu for one in found.values()}):
        own = [one for one in found.values() if one.gpu == gpu]
        why = " and ".join(dict.fromkeys(word for one in own for word in one.why))
        course = "".join(_course_text(own))
        yield f"GPU {gpu} by {why} in {len(own)} trial{'s' * (len(own) > 1)}{course}: {HEALTHY}"


def _course_text(of: list[Slowed]) -> Iterator[str]:
    if (share := max(one.share for one in of)) < 1:
        yield f", {'up to ' * (len(of) > 1)}{100 * share:.2g}% of the time"
    clocks = [one.sm_mhz for one in of if one.sm_mhz is not None]
    tops = [one.top_mhz for one in of if one.top_mhz is not None]
    heat = [one.celsius for one in of if one.celsius is not None]
    if clocks and tops:
        span = f"{min(clocks):,}" if min(clocks) == max(clocks) else f"{min(clocks):,} to {max(clocks):,}"
        yield f", at {span} of its {max(tops):,} MHz"
    if heat:
        yield f"{' and' if clocks and tops else ', at'} {'up to ' * (len(of) > 1)}{max(heat)} °C"

"""The marks of a measured trial: why its figure is not that of an undisturbed, healthy, steady machine.

In: telemetry.jsonl, the time span of each trial's steps, and the estimates. Out: the marks of each trial.
Every reader of a bundle computes them from its files. Every output shows a figure with its marks, and no
marked figure is ranked above one without marks. Pure.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from bench.base.frozen import dataclass
from bench.base.sizes import bytes_text
from bench.records.estimate import Interval
from bench.records.slowdown import HEALTHY, LEAST_SHARE, Slowed, Span, slowed_text, telemetry_line
from bench.records.text import count_text, figures

MarkKind = Literal["SLOWED", "DISTURBED", "SHARED", "LOADED", "UNSTEADY"]
MEANING: Mapping[MarkKind, str] = {
    "SLOWED": HEALTHY,
    "DISTURBED": "figures of both runs are wrong: run one after the other",
    "SHARED": "the GPU alone may be faster, and has room for larger micro-batches",
    "LOADED": "the idle machine may be faster",
    "UNSTEADY": "too uncertain to be used; a quieter machine gives a figure",
}
UNSTEADY_SHARE = 0.5  # half-width as a share of the figure: the interval is as wide as the figure
# Load for each CPU above which other work must run too. A run on GPUs keeps a few CPUs busy for each GPU, and
# all of them only while it compiles; a run on the CPU keeps all of them busy.
MOST_OWN_LOAD = {"cuda": 0.7, "cpu": 2.0}
# Before and after the timed steps, in which readings count as well: a machine is read once a second, so a
# trial of a few steps may lie between two readings.
AROUND_SECONDS = 1.5
_MOST_AROUND = 16  # trials within that time
_OTHERS = b'"others":true'
_HELD_KEY = b'"held_bytes":'
_LOAD_KEY = b'"load":'
_LOAD = re.compile(_LOAD_KEY + rb"\s*(\d{1,7}(?:\.\d{1,20})?)")


@dataclass(frozen=True, slots=True)
class Mark:
    """A reason to read a trial's figure with care."""

    kind: MarkKind
    text: str  # what was seen, on one line
    degree: float  # orders marks of one kind: a share of readings, a load, a half-width


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs of a node, whose load is judged."""

    count: int
    device: Literal["cpu", "cuda"]  # where the run trains

    @property
    def most_load(self) -> float:
        """The highest load for each CPU that a run makes alone."""
        return MOST_OWN_LOAD[self.device]

    @property
    def most_total(self) -> float:
        """The highest load of all CPUs together that a run makes alone."""
        return self.most_load * self.count


def top_load(block: bytes) -> float:
    """Return the highest load in a block of lines; infinite if a reading tells of other users of the GPUs.

    Searches the text of the whole block at once, which is faster than decoding its lines.
    """
    if _OTHERS in block or _HELD_KEY in block:
        return math.inf
    loads = _LOAD.findall(block) if _LOAD_KEY in block else ()  # `in` is several times faster
    return max(map(float, set(loads)), default=0.0)


@dataclass(slots=True)
class _OtherWork:
    """The other load on the machine while one trial's steps were timed."""

    readings: int = 0
    others: int = 0
    held: tuple[int, int] = (0, 0)  # the most bytes that other processes held on a GPU, and this GPU
    loads: list[tuple[float, float, int]] = field(default_factory=list)  # (for each CPU, load, CPUs)

    def add_others(self, reading: Mapping[str, Any]) -> None:
        """Count a reading, and whether another bench measured at that moment."""
        self.readings += 1
        self.others += reading.get("others") is True

    def add_held(self, reading: Mapping[str, Any]) -> None:
        """Keep the most memory that other processes hold on any GPU of a reading."""
        gpus = reading.get("gpus")
        for index, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
            held = gpu.get("held_bytes") if isinstance(gpu, dict) else None
            if type(held) is int:
                self.held = max(self.held, (held, index))

    def add_load(self, reading: Mapping[str, Any], cpus: Cpus) -> None:
        """Keep the load of a reading; `cpus` tells how many there are if the reading does not."""
        load, count = reading.get("load"), reading.get("cpus")
        count = count if type(count) is int and count > 0 else cpus.count
        if isinstance(load, int | float) and count > 0:
            self.loads.append((load / count, float(load), count))

    def marks(self, cpus: Cpus) -> Iterator[Mark]:
        """Yield a mark for each kind of other work that was enough to matter."""
        share = self.others / self.readings if self.readings else 0.0
        if share >= LEAST_SHARE:
            beside = f"another bench measured beside it, {figures(100 * share, 2)}% of the time"
            yield Mark("DISTURBED", beside, share)
        held, gpu = self.held
        if held > 0:
            yield Mark("SHARED", f"other processes held {bytes_text(held)} of GPU {gpu}", held)
        if self.loads:
            each, load, count = sorted(self.loads)[len(self.loads) // 2]
            if each > cpus.most_load:
                yield Mark("LOADED", f"a load of {load:.3g} on {count} CPUs, from other work", each)


def _around(ordered: Sequence[tuple[float, float, str]], at: float) -> Iterator[str]:
    """Yield the trials with a reading at `at` during or around their timed steps; `ordered` by beginning."""
    begun_by_then = bisect_right(ordered, (at + AROUND_SECONDS, math.inf, ""))
    for _, ended, name in ordered[max(0, begun_by_then - _MOST_AROUND) : begun_by_then]:
        if at <= ended + AROUND_SECONDS:
            yield name


def marks_of_other_work(
    read: Callable[[], Iterable[bytes]], spans: Mapping[str, Span], cpus: Cpus
) -> Mapping[str, tuple[Mark, ...]]:
    """Mark the trials during whose timed steps other programs used the machine; keyed by trial id.

    `read` returns telemetry.jsonl in pieces of whole lines. There is no such trial if `top_load` of every
    piece is at most `cpus.most_total`. A trial may be shorter than the time between two readings, so the
    readings around it also count for whether another bench measured.
    """
    found: defaultdict[str, _OtherWork] = defaultdict(_OtherWork)
    ordered = sorted((begun, ended, name) for name, (begun, ended) in spans.items())
    for line in (line for block in read() for line in block.split(b"\n")):
        reading = telemetry_line(line)
        trial, at = reading.get("trial"), reading.get("at")
        if not isinstance(at, int | float):
            continue
        for name in _around(ordered, at):
            found[name].add_others(reading)
        if isinstance(trial, str) and trial in spans:
            begun, ended = spans[trial]
            found[trial].add_held(reading)  # which was noted before the trial began
            if begun <= at <= ended:
                found[trial].add_load(reading, cpus)
    marks = {trial: tuple(other_work.marks(cpus)) for trial, other_work in found.items()}
    return {trial: seen for trial, seen in marks.items() if seen}


def unsteady(days: Interval) -> Mark | None:
    """Return the mark of a figure whose interval is as wide as the figure; None for a steady one."""
    share = days.half_width / days.value if days.value > 0 else 0.0
    if share < UNSTEADY_SHARE:
        return None
    return Mark("UNSTEADY", f"its 95% interval is {200 * share:.0f}% of the figure wide", share)


def steady_first(interval: Interval) -> tuple[bool, float]:
    """Return a sort key: steady figures by their value, and after them unsteady ones by theirs."""
    return unsteady(interval) is not None, interval.value


def all_marks(
    slowed: Mapping[str, Slowed], other_work: Mapping[str, tuple[Mark, ...]], days: Mapping[str, Interval]
) -> Mapping[str, tuple[Mark, ...]]:
    """Collect the marks of every trial; a trial without a mark is left out."""
    found = {
        trial: (
            *([Mark("SLOWED", slowed_text(slowed[trial]), slowed[trial].share)] if trial in slowed else ()),
            *other_work.get(trial, ()),
            *filter(None, [unsteady(interval)]),
        )
        for trial, interval in days.items()
    }
    return {trial: marks for trial, marks in found.items() if marks}


def marked_text(text: str, kinds: Iterable[str]) -> str:
    """Add the kinds of a figure's marks to its text, as in 1.2 ±0.9 days (UNSTEADY)."""
    names = ", ".join(kinds)
    return f"{text} ({names})" if names else text


def worst_marks(marks: Mapping[str, tuple[Mark, ...]]) -> Iterator[tuple[Mark, int]]:
    """Yield the worst mark of each kind over the trials of a run, with the number of trials that have it."""
    for kind in MEANING:
        alike = [mark for of_trial in marks.values() for mark in of_trial if mark.kind == kind]
        if alike:
            yield max(alike, key=lambda mark: mark.degree), len(alike)


def mark_lines(marks: Mapping[str, tuple[Mark, ...]]) -> Iterator[tuple[MarkKind, str]]:
    """Yield kind and line of each kind of mark; `slowdown.slowed_lines` has the lines of SLOWED, by GPU."""
    for mark, count in worst_marks(marks):
        if mark.kind != "SLOWED":
            worst = "" if count == 1 else ", at worst"
            yield mark.kind, f"{count_text(count, 'trial')}{worst}: {mark.text}: {MEANING[mark.kind]}"

"""What a bundle cannot hold whole, made to fit: a run of many hours must not end without one.

Only what no figure needs whole: telemetry and logs. What fits goes in as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.bundle.tar_format import MAX_MEMBER_BYTES, MAX_TOTAL_BYTES
from bench.node_check.judging.evidence import Reading
from bench.runner.processes.logs import LOG_BYTES, head_and_tail

LOGS_BYTES = MAX_TOTAL_BYTES - 4 * MAX_MEMBER_BYTES  # together: the rest of a bundle needs room too
# What somebody may look for in a reading of telemetry: the first and the last one with each of it stay.
Marks = Callable[[Mapping[str, Any]], Iterable[Hashable]]


def fitting_logs(folder: Path, most_bytes: int = MAX_MEMBER_BYTES) -> dict[str, bytes]:
    """By their names in the bundle."""
    paths = sorted(folder.glob("*.txt"))
    if sum(path.stat().st_size for path in paths) > LOGS_BYTES:
        most_bytes = LOG_BYTES
    return {f"logs/{path.name}": head_and_tail(path, most_bytes) for path in paths}


def fitting_course(data: bytes, marks: Marks, most_bytes: int = MAX_MEMBER_BYTES) -> bytes:
    """Telemetry, of which every n-th reading is kept if it is too long, evenly, and all that is marked."""
    readings = list(_readings(data))
    data = b"".join(line for line, _ in readings)  # who reads the bundle refuses half a line
    if len(data) <= most_bytes:
        return data
    for always in (_marked(readings, marks), frozenset[int]()):
        every = -(-len(data) // most_bytes)
        while every <= len(readings):
            kept = b"".join(line for i, (line, _) in enumerate(readings) if i % every == 0 or i in always)
            if len(kept) <= most_bytes:
                return kept
            every += 1 + every // 8
    return b""


def _readings(data: bytes) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Line by line, with what it says. What fails leaves half a line, and the run goes on."""
    for line in data.splitlines(keepends=True):
        with suppress(ValueError):
            if isinstance(reading := json.loads(line), dict):
                yield line, reading


def _marked(readings: Sequence[tuple[bytes, Mapping[str, Any]]], marks: Marks) -> Collection[int]:
    first: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    for i, (_, reading) in enumerate(readings):
        for mark in marks(reading):
            first.setdefault(mark, i)
            last[mark] = i
    return {*first.values(), *last.values()}


def marks_of_trials(timed: Mapping[str, tuple[float, float]]) -> Marks:
    """Each trial, and the time in which its steps were timed: energy is taken between its two ends."""

    def marks(reading: Mapping[str, Any]) -> Iterator[Hashable]:
        trial = reading["trial"]
        yield trial
        if trial in timed and timed[trial][0] <= reading["at"] <= timed[trial][1]:
            yield trial, "timed"

    return marks


def marks_of_checks(readings: Mapping[str, Reading]) -> Marks:
    """What verdicts follow from: all that a GPU showed at all, and while each check went on."""

    def marks(reading: Mapping[str, Any]) -> Iterator[Hashable]:
        names = [n for n, r in readings.items() if r.started_at <= reading["at"] <= r.ended_at]
        yield from names
        for i, gpu in enumerate(reading["gpus"]):
            yield from ((i, xid) for xid in gpu.get("xids") or ())
            yield i, gpu.get("lost")
            link = gpu.get("pcie_generation"), gpu.get("pcie_width")
            for name in names:
                yield name, i, "link", link
                yield name, i, "celsius", gpu.get("celsius")
                yield name, i, "throttle", gpu.get("throttle_reasons")

    return marks

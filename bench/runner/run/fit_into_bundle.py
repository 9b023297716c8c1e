"""Shorten telemetry and logs of a long run so that they fit into a bundle. Reads logs; else pure.

No figure needs all telemetry or whole logs. Files that fit are left unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.bundle.tar_format import MAX_LINES, MAX_MEMBER_BYTES, MAX_TOTAL_BYTES
from bench.node_check.judging.evidence import Reading
from bench.runner.processes.logs import LOG_BYTES, head_and_tail

LOGS_BYTES = MAX_TOTAL_BYTES - 4 * MAX_MEMBER_BYTES  # all logs together; the rest is for other members
# The marks of a reading of telemetry. The first and the last reading with each mark are kept.
Marks = Callable[[Mapping[str, Any]], Iterable[Hashable]]


def fitting_logs(folder: Path, most_bytes: int = MAX_MEMBER_BYTES) -> dict[str, bytes]:
    """Return the logs in `folder` by their names in the bundle; long ones are cut to beginning and end."""
    paths = sorted(folder.glob("*.txt"))
    if sum(path.stat().st_size for path in paths) > LOGS_BYTES:
        most_bytes = LOG_BYTES
    return {f"logs/{path.name}": head_and_tail(path, most_bytes) for path in paths}


def fit_telemetry(
    data: bytes, marks: Marks, most_bytes: int = MAX_MEMBER_BYTES, most_lines: int = MAX_LINES
) -> bytes:
    """Return telemetry that fits into a bundle: of longer `data` every n-th reading and the marked ones."""
    readings = list(_readings(data))
    lines = [line for line, _ in readings]  # without torn lines, which readers of a bundle refuse
    if _fits(lines, most_bytes, most_lines):
        return b"".join(lines)
    for always in (_marked(readings, marks), frozenset[int]()):
        every = 1
        while every <= len(lines):
            kept = [line for i, line in enumerate(lines) if i % every == 0 or i in always]
            if _fits(kept, most_bytes, most_lines):
                return b"".join(kept)
            every += 1 + every // 8
    return b""


def _fits(lines: Sequence[bytes], most_bytes: int, most_lines: int) -> bool:
    return len(lines) <= most_lines and sum(map(len, lines)) <= most_bytes


def _readings(data: bytes) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Parse telemetry into pairs of line and reading; drop a torn line, which a run that died leaves."""
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
    """Return the marks of each trial and of the span of its timed steps, whose two ends give the energy."""

    def marks(reading: Mapping[str, Any]) -> Iterator[Hashable]:
        trial = reading["trial"]
        yield trial
        if trial in timed and timed[trial][0] <= reading["at"] <= timed[trial][1]:
            yield trial, "timed"

    return marks


def marks_of_checks(readings: Mapping[str, Reading]) -> Marks:
    """Return the marks that verdicts need: Xid events, losses, and each check's links, heat, throttling."""

    def marks(reading: Mapping[str, Any]) -> Iterator[Hashable]:
        at = reading["at"]
        names = [name for name, check in readings.items() if check.started_at <= at <= check.ended_at]
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

"""The settings that the search tried on the fastest machine: days with their interval, against memory."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.text import bytes_text, interval_text
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot

BOX = Box(64, 36, 470, 300)
MOST = 3  # machines, one picture each


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    shown: set[str] = set()
    for entry in part.entries:
        row = entry.row
        tried = [attempt for attempt in row.attempts if attempt.outcome == "measured"]
        if len(tried) < 3 or row.machine.label in shown or len(shown) == MOST:
            continue
        shown.add(row.machine.label)
        yield _plot(part.model, row, len(shown))


def _plot(model: str, row: Row, number: int) -> Plot:
    points = [
        Point(
            (attempt.peak_bytes or 0) / 2**30, attempt.days.value, _kind(attempt.setting), attempt.label,
            f"{attempt.label}, micro-batch {attempt.micro_batch}: {interval_text(attempt.days)} days, "
            f"{bytes_text(attempt.peak_bytes or 0)}",
            half_width=attempt.days.half_width,
        )
        for attempt in row.attempts
        if attempt.days is not None and attempt.outcome == "measured"
    ]  # fmt: skip
    spread = max(p.y for p in points) / min(p.y for p in points)
    body = scatter(points, BOX, "memory, GiB", "days", log_y=spread > 8, labelled=False)
    names = list(dict.fromkeys(p.series for p in points))
    body += key(names, 496, 48, "nothing beats these")
    title = f"{model} on {row.machine.label}: {len(points)} settings that were measured"
    told = "; ".join(point.words for point in points[:12])
    return Plot(f"{model}-settings-{number}", title, told, 640, 352, body)


def _kind(setting: tuple[str, ...]) -> str:
    """By what takes the most from the memory."""
    if not setting:
        return "naive"
    found = next((name for name in setting if name.startswith(("zero", "fsdp"))), "no sharding")
    return found.partition("-")[0] + (" + offload" if "offload" in setting else "") if "-" in found else found

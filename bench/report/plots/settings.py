"""Plot days against memory for the settings measured on the fastest machines."""

from __future__ import annotations

from collections.abc import Iterator

from bench.base.sizes import bytes_text
from bench.records.marks import marked_text
from bench.records.text import interval_text
from bench.report.compare.compared_rows import MeasuredAttempt, Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.scatter import Point, days_plot
from bench.report.plots.svg import Plot

MOST_MACHINES = 3  # with one plot for each


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """Yield one plot for each of the fastest kinds of machine that measured at least three settings."""
    shown: set[str] = set()
    for entry in part.entries:
        row = entry.row
        if len(row.rankable) < 3 or row.machine.label in shown or len(shown) == MOST_MACHINES:
            continue
        shown.add(row.machine.label)
        yield _plot(part, row, len(shown))


def _plot(part: ModelPart, row: Row, number: int) -> Plot:
    points = list(map(_point, row.rankable))
    title = f"{part.title} on {row.machine.label}: {len(points)} settings that were measured"
    words = [point.words for point in points]
    of_plot = f"{part.name}-settings-{number}", title, "memory, GiB", points, words, [row.run_id]
    return days_plot(*of_plot, size=(640, 352), labelled=False)


def _point(attempt: MeasuredAttempt) -> Point:
    days = marked_text(f"{interval_text(attempt.days)} days", attempt.marks)
    memory = bytes_text(attempt.peak_bytes)
    return Point(
        attempt.peak_bytes / 2**30,
        attempt.days.value,
        _kind(attempt.setting),
        attempt.label,
        f"{attempt.label}, micro-batch {attempt.micro_batch}: {days}, {memory}",
        half_width=attempt.days.half_width,
        marked=bool(attempt.marks),
    )


def _kind(setting: tuple[str, ...]) -> str:
    """Name the series of a setting by its sharding and offloading, which save the most memory."""
    if not setting:
        return "naive"
    sharding = next((name for name in setting if name.startswith(("zero-", "fsdp-"))), None)
    if sharding is None:
        return "no sharding"
    return sharding.partition("-")[0] + (" + offload" if "offload" in setting else "")

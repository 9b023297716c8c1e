"""Plot a run's power, clock and temperature over time, as means over its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.text import figures
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison
from bench.report.compare.energy import TelemetryCourse
from bench.report.markup import fragment
from bench.report.plots.svg import Box, Linear, Plot, axes, polyline, text

WIDTH = 640
PANES = (("watts", "watts a GPU"), ("sm_mhz", "clock, MHz"), ("celsius", "°C"))


def plots(comparison: Comparison) -> Iterator[Plot]:
    """Yield one plot for each run with readings of GPUs, however many models it measured."""
    shown = set()
    for part in comparison.parts:
        for row in part.rows:
            course = row.telemetry
            if course is not None and row.run_id not in shown and any(getattr(course, n) for n, _ in PANES):
                shown.add(row.run_id)
                yield plot(row, course)


def plot(row: Row, course: TelemetryCourse) -> Plot:
    """Draw a pane for each kind of reading, one below the other."""
    minutes = [seconds / 60 for seconds in course.seconds]
    parts, descriptions = [], []
    panes = [(name, words) for name, words in PANES if getattr(course, name)]
    height = 70
    for i, (name, words) in enumerate(panes):
        values: tuple[float, ...] = getattr(course, name)
        top = 22 + i * (height + 20)
        box = Box(64, top, 610, top + height)
        x = Linear(0, max(minutes), box.left, box.right)
        y = Linear(0, (max(values) or 1.0) * 1.1, box.bottom, box.top)
        last = i == len(panes) - 1  # only the last pane has a time axis
        parts.append(axes(x, y, box, "minutes" if last else "", "", x_words=last, y_ticks=y.ticks(3)))
        parts.append(text(box.left, box.top - 5, words, class_="small"))
        # Whole pixels: a page may show the courses of a hundred runs.
        points = ((round(x(t)), round(y(v))) for t, v in zip(minutes, values, strict=True))
        parts.append(polyline(points, f"s{i} line"))
        descriptions.append(f"{words} {figures(min(values))} to {figures(max(values))}")
    title = f"run {row.run_id} on {row.machine.label}: its course"
    description, whole = "; ".join(descriptions), 40 + len(panes) * (height + 20)
    return Plot(f"run-{row.run_id}", title, description, WIDTH, whole, fragment(*parts), (row.run_id,))

"""Plot how many times as fast as naive each setting is, on the fastest machine."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.estimate import Interval
from bench.records.marks import marked_text, steady_first
from bench.records.text import interval_text
from bench.report.compare.compared_rows import MeasuredAttempt, Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.decision import ratio
from bench.report.markup import el, fragment
from bench.report.plots.svg import Linear, Plot, line, text, tick_texts

LEFT, RIGHT, TOP, ROW = 280, 580, 24, 22


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """Yield one plot, for the fastest machine that measured naive and another setting."""
    for entry in part.entries:
        gains = _gains(entry.row)
        if gains:
            yield _plot(part, entry.row, gains)
            return


def _gains(row: Row) -> list[tuple[MeasuredAttempt, Interval]]:
    """Return each setting at its fastest micro-batch, with its speed-up over naive; the largest first.

    An unsteady figure represents a setting only if the setting has no other.
    """
    best: dict[str, MeasuredAttempt] = {}
    for attempt in sorted(row.rankable, key=lambda one: steady_first(one.days)):
        best.setdefault(attempt.label, attempt)
    if "naive" not in best or len(best) < 2:
        return []
    gains = [
        (attempt, ratio(best["naive"].days.of_another_process, attempt.days.of_another_process))
        for attempt in best.values()
    ]
    return sorted(gains, key=lambda pair: -pair[1].value)


def _plot(part: ModelPart, row: Row, gains: list[tuple[MeasuredAttempt, Interval]]) -> Plot:
    high = max(gain.high for _, gain in gains) * 1.05
    x = Linear(0, max(high, 1.1), LEFT, RIGHT)
    bottom = TOP + ROW * len(gains)
    parts = [line(x(1), TOP - 6, x(1), bottom, "axis")]
    for tick, words in zip(x.ticks(), tick_texts(x.ticks()), strict=True):
        parts.append(line(x(tick), TOP - 6, x(tick), bottom, "grid"))
        parts.append(text(x(tick), bottom + 16, f"{words}x", anchor="middle", class_="small muted"))
    for i, (attempt, gain) in enumerate(gains):
        y = TOP + ROW * i
        said = marked_text(f"{interval_text(gain)} times", attempt.marks)
        words = f"{attempt.label}: {said} as fast as naive"
        width = x(gain.value) - x(0)
        parts.append(text(LEFT - 8, y + 14, attempt.label[:48], anchor="end", class_="small"))
        parts.append(
            el("rect", el("title", words), x=x(0), y=y + 3, width=width, height=ROW - 8, class_="s0 bar")
        )
        low, high_x = x(max(0.0, gain.low)), x(gain.high)
        parts.append(line(low, y + ROW / 2 - 1, high_x, y + ROW / 2 - 1, "axis"))
        parts.append(text(high_x + 6, y + 14, f"{gain.value:.2f}x", class_="small"))
    description = "; ".join(
        marked_text(f"{attempt.label} {gain.value:.2f} times", attempt.marks) for attempt, gain in gains
    )
    heading = f"{part.title} on {row.machine.label}: times as fast as naive"
    return Plot(
        f"{part.name}-speedups", heading, description, 640, bottom + 30, fragment(*parts), (row.run_id,)
    )

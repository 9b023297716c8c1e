"""How many times faster than naive each setting is, the fastest machine's."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.estimate import Interval
from bench.records.text import interval_text
from bench.report.compare.compared_rows import Attempt, Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.decision import ratio
from bench.report.plots.svg import Linear, Plot, el, line, text, title

LEFT, RIGHT, TOP, ROW = 280, 580, 24, 22


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """Of the fastest machine that measured naive and something else."""
    for entry in part.entries:
        gains = _gains(entry.row)
        if gains:
            yield _plot(part, entry.row, gains)
            return


def _gains(row: Row) -> list[tuple[Attempt, Interval]]:
    """Each setting at the micro-batch at which it is fastest."""
    best: dict[str, tuple[Attempt, Interval]] = {}
    for attempt in row.attempts:
        days = attempt.days
        if attempt.outcome != "measured" or days is None:
            continue
        if attempt.label not in best or days.value < best[attempt.label][1].value:
            best[attempt.label] = (attempt, days)
    if "naive" not in best or len(best) < 2:
        return []
    naive = best["naive"][1]
    found = [(attempt, ratio(naive, days)) for attempt, days in best.values()]
    return sorted(found, key=lambda pair: -pair[1].value)


def _plot(part: ModelPart, row: Row, gains: list[tuple[Attempt, Interval]]) -> Plot:
    high = max(gain.value + gain.half_width for _, gain in gains) * 1.05
    x = Linear(0, max(high, 1.1), LEFT, RIGHT)
    bottom = TOP + ROW * len(gains)
    parts = [line(x(1), TOP - 6, x(1), bottom, "axis")]
    for tick in x.ticks():
        parts.append(line(x(tick), TOP - 6, x(tick), bottom, "grid"))
        parts.append(text(x(tick), bottom + 16, f"{tick:g}x", anchor="middle", class_="small muted"))
    for i, (attempt, gain) in enumerate(gains):
        y = TOP + ROW * i
        words = f"{attempt.label}: {interval_text(gain)} times as fast as naive"
        width = x(gain.value) - x(0)
        parts.append(text(LEFT - 8, y + 14, attempt.label[:48], anchor="end", class_="small"))
        parts.append(el("rect", title(words), x=x(0), y=y + 3, width=width, height=ROW - 8, class_="s0 bar"))
        low, high_x = x(max(0.0, gain.value - gain.half_width)), x(gain.value + gain.half_width)
        parts.append(line(low, y + ROW / 2 - 1, high_x, y + ROW / 2 - 1, "axis"))
        parts.append(text(high_x + 6, y + 14, f"{gain.value:.2f}x", class_="small"))
    told = "; ".join(f"{attempt.label} {gain.value:.2f} times" for attempt, gain in gains)
    title_ = f"{part.model} on {row.machine.label}: times as fast as naive"
    return Plot(f"{part.model}-speedups", title_, told, 640, bottom + 30, "".join(parts))

"""Plot what fits into memory: settings down, kinds of machine across, peak memory in each cell."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from bench.base.sizes import bytes_text
from bench.records.text import count_text
from bench.report.compare.compared_rows import MeasuredAttempt, Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.markup import Markup, el, fragment
from bench.report.plots.svg import Plot, text

CELL_W, CELL_H, LEFT, TOP = 104, 22, 290, 56
HEAD = 14  # letters in each of the two lines of a column's head
MOST_COLUMNS = 8
OUTCOMES = {
    "out-of-memory": "no memory",
    "timed-out": "timed out",
    "measured": "fits",
    "wrong-gradients": "wrong",
}


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """Yield a grid with a column for each kind of machine and memory, if there are three settings or more."""
    rows: dict[str, Row] = {}
    for row in part.rows:
        if row.attempts:
            rows.setdefault(f"{row.machine.label}, {_memory(row)}", row)
    columns = list(rows.values())[:MOST_COLUMNS]
    labels = list(dict.fromkeys(attempt.label for row in columns for attempt in row.attempts))
    if len(labels) < 3:
        return
    parts = [_head(i, row) for i, row in enumerate(columns)]
    for j, label in enumerate(labels):
        y = TOP + CELL_H * j
        parts.append(text(LEFT - 8, y + 15, label[:48], anchor="end", class_="small"))
        for i, row in enumerate(columns):
            parts.append(_cell(LEFT + CELL_W * i, y, label, row))
    width, height = LEFT + CELL_W * len(columns) + 16, TOP + CELL_H * len(labels) + 16
    left_out = len(rows) - len(columns)
    most = f", the first {len(columns)} of {len(rows)} kinds of machine" if left_out else ""
    kinds = f"{count_text(len(columns), 'kind')} of machine"
    description = f"{len(labels)} settings on {kinds}, with the memory that each took"
    heading = f"{part.title}: what fits, and in how much memory{most}"
    name = f"{part.name}-feasibility"
    yield Plot(
        name,
        heading,
        description,
        max(width, 360),
        height,
        fragment(*parts),
        tuple(row.run_id for row in columns),
    )


def _head(i: int, row: Row) -> Markup:
    x = LEFT + CELL_W * i + CELL_W / 2
    lines = wrap(row.machine.label, HEAD)[:2]
    ats = ((line[:HEAD], TOP - 36 + 13 * n) for n, line in enumerate(lines))
    name = (text(x, y, line, anchor="middle", class_="small") for line, y in ats)
    return fragment(*name, text(x, TOP - 8, _memory(row), anchor="middle", class_="small muted"))


def _memory(row: Row) -> str:
    """Say how much memory of a device trials could use: a manifest may cap it to that of a smaller card."""
    cap = dict(row.conditions).get("memory cap", "none")
    return f"{bytes_text(row.machine.memory_bytes)} each" if cap == "none" else f"capped at {cap}"


def _cell(x: float, y: float, label: str, row: Row) -> Markup:
    """Draw the fastest attempt with this setting that fits, or else why the first one has no figure."""
    attempts = [attempt for attempt in row.attempts if attempt.label == label]
    fitting = [attempt for attempt in attempts if isinstance(attempt, MeasuredAttempt)]
    fitting = [attempt for attempt in fitting if attempt.outcome != "wrong-gradients"]
    if fitting:
        best = min(fitting, key=lambda attempt: attempt.days.value)
        kind, outcome, reason = "good", bytes_text(best.peak_bytes), best.reason
    elif attempts:
        failed = attempts[0]
        kind, outcome, reason = "bad", OUTCOMES.get(failed.outcome, failed.outcome), failed.reason
    else:
        kind, outcome, reason = "none", "not tried", None
    words = f"{row.machine.label}, {label}: {outcome}" + (f", {reason}" if reason else "")
    box = el("rect", el("title", words), x=x + 1, y=y + 1, width=CELL_W - 2, height=CELL_H - 2, class_=kind)
    return fragment(box, text(x + CELL_W / 2, y + 15, outcome, anchor="middle", class_="small"))

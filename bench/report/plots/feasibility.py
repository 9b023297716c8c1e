"""What fits: settings down, machines across, the memory that each took of what there is."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from bench.records.text import bytes_text
from bench.report.compare.compared_rows import Attempt, Row
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.svg import Plot, el, text, title

CELL_W, CELL_H, LEFT, TOP = 104, 22, 290, 56
HEAD = 14  # letters of one of a head's two lines
MOST_COLUMNS = 8
WORDS = {
    "out-of-memory": "no memory",
    "timed-out": "timed out",
    "measured": "fits",
}


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """One column a kind of machine and memory: forty equal nodes tell no more than one."""
    rows: dict[str, Row] = {}
    for row in [*(e.row for e in part.entries), *(a.row for a in part.apart)]:
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
    told = f"{len(labels)} settings on {len(columns)} kinds of machine, with the memory that each took"
    yield Plot(
        f"{part.model}-feasibility", f"{part.model}: what fits, and in how much memory{most}", told,
        max(width, 360), height, "".join(parts),
    )  # fmt: skip


def _head(i: int, row: Row) -> str:
    x = LEFT + CELL_W * i + CELL_W / 2
    lines = wrap(row.machine.label, HEAD)[:2]
    return "".join(
        text(x, TOP - 36 + 13 * n, said[:HEAD], anchor="middle", class_="small")
        for n, said in enumerate(lines)
    ) + text(x, TOP - 8, _memory(row), anchor="middle", class_="small muted")


def _memory(row: Row) -> str:
    """What a trial could use of each device: a smaller card's, where the manifest asked for that."""
    cap = dict(row.conditions).get("memory cap", "none")
    return f"{bytes_text(row.machine.memory_bytes)} each" if cap == "none" else f"capped at {cap}"


def _cell(x: float, y: float, label: str, row: Row) -> str:
    found = [attempt for attempt in row.attempts if attempt.label == label]
    fitting = [a for a in found if a.peak_bytes is not None]
    best = min(fitting, key=_days) if fitting else next(iter(found), None)
    kind = "none" if best is None else "good" if best.peak_bytes is not None else "bad"
    said = "not tried" if best is None else WORDS.get(best.outcome, best.outcome)
    if best is not None and best.peak_bytes is not None:
        said = bytes_text(best.peak_bytes)
    words = f"{row.machine.label}, {label}: {said}" + (f", {best.reason}" if best and best.reason else "")
    box = el("rect", title(words), x=x + 1, y=y + 1, width=CELL_W - 2, height=CELL_H - 2, class_=kind)
    return box + text(x + CELL_W / 2, y + 15, said, anchor="middle", class_="small")


def _days(attempt: Attempt) -> float:
    assert attempt.days is not None
    return attempt.days.value

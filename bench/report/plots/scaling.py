"""Plot how throughput grows with the number of GPUs of one kind, against linear scaling."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.marks import marked_text
from bench.records.text import figures
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.markup import fragment
from bench.report.plots.scatter import key
from bench.report.plots.svg import Box, Linear, Plot, axes, mark, polyline

WIDTH, HEIGHT = 700, 340
BOX = Box(72, 36, 470, 280)


def plots(part: ModelPart, _comparison: Comparison) -> Iterator[Plot]:
    """Yield one plot if machines with different numbers of one kind of GPU were measured."""
    kinds: dict[str, dict[int, RankedRow]] = {}
    for entry in reversed(part.entries):  # of rows with as many GPUs, the fastest overwrites the others
        kinds.setdefault(entry.row.machine.name, {})[entry.row.machine.devices] = entry.row
    curves = {name: rows for name, rows in kinds.items() if len(rows) > 1}
    if not curves:
        return
    counts = [devices for rows in curves.values() for devices in rows]
    most = max(_rate(row) for rows in curves.values() for row in rows.values())
    x = Linear(0, max(counts) * 1.08, BOX.left, BOX.right)
    y = Linear(0, most * 1.1, BOX.bottom, BOX.top)
    parts = [axes(x, y, BOX, "GPUs", f"{part.unit} a second", x_ticks=sorted(set(counts)))]
    descriptions = []
    for number, rows in enumerate(curves.values()):
        least = min(rows)
        per = _rate(rows[least]) / least
        end = min(max(rows), most * 1.1 / per)
        parts.append(polyline([(x(0), y(0)), (x(end), y(per * end))], "ideal"))
        ordered = sorted(rows.items())
        parts.append(polyline(((x(n), y(_rate(r))) for n, r in ordered), f"s{number % 8} line"))
        for devices, row in ordered:
            share = _rate(row) / (per * devices)
            marked = (mark.kind for mark in row.marks)
            rate = marked_text(f"{figures(_rate(row))} {part.unit}/s", marked)
            words = f"{row.machine.label}: {rate}, {100 * share:.0f}% of a straight line"
            parts.append(mark(x(devices), y(_rate(row)), number, words=words))
            descriptions.append(words)
    parts.append(key([name.removeprefix("NVIDIA ") for name in curves], 496, 48, None))
    title = f"{part.title}: throughput by the number of GPUs"
    runs = tuple(dict.fromkeys(row.run_id for rows in curves.values() for row in rows.values()))
    yield Plot(f"{part.name}-scaling", title, "; ".join(descriptions), WIDTH, HEIGHT, fragment(*parts), runs)


def _rate(row: RankedRow) -> float:
    return row.best.units_per_second

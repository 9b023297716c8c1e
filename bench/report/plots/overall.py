"""Plot days against what a run costs over all models: a point for each cell of the matrix. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.marks import marked_text
from bench.records.text import currency_sign, figures, money_text
from bench.report.compare.comparison import Comparison
from bench.report.compare.matrix import Matrix, MatrixCell, MatrixRow, matrix_of
from bench.report.markup import fragment
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot

WIDTH, HEIGHT = 700, 380
LEGEND_LINE = 18  # pixels
SPREAD = 8  # of the largest figure over the smallest, from which on a scale is logarithmic


def overall_plot(comparison: Comparison) -> Plot | None:
    """Draw all models on all machines; None if there is one group, whose own plot shows it, or one cost."""
    matrix = matrix_of(comparison)
    pairs = list(_costed(matrix))
    if len(matrix.rows) < 2 or len(pairs) < 2:
        return None
    points = [_point(row, cell, comparison.currency) for row, cell in pairs]
    names = list(dict.fromkeys(point.series for point in points))
    height = max(HEIGHT, 80 + LEGEND_LINE * len(names))
    wish = comparison.wish
    drawing = scatter(
        points,
        Box(64, 36, 470, height - 60),
        f"cost of a run, {comparison.currency}; hollow: estimated, large: the answer",
        log_x=_spread([point.x for point in points]),
        log_y=_spread([point.y for point in points]),
        limits=(wish.budget and wish.budget / wish.runs, wish.deadline_days),
        x_unit=currency_sign(comparison.currency),
        series=names,
    )
    hollow = {name for name in names if all(p.hollow for p in points if p.series == name)}
    runs = dict.fromkeys(cell.run_id for _, cell in pairs if cell.run_id)
    words = "; ".join(f"{point.series}, {point.words}" for point in points[:12])
    more = f"; and {len(points) - 12} more" if len(points) > 12 else ""
    legend = key(names, 496, 48, None, hollow=hollow)
    title = "All models: days against the cost of a run"
    return Plot("days-and-costs", title, words + more, WIDTH, height, fragment(drawing, legend), tuple(runs))


def _spread(values: list[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > SPREAD


def _costed(matrix: Matrix) -> Iterator[tuple[MatrixRow, MatrixCell]]:
    for row in matrix.rows:
        for cell in row.cells:
            if cell is not None and cell.run_cost:
                yield row, cell


def _point(row: MatrixRow, cell: MatrixCell, currency: str) -> Point:
    """Place a cell; only an answer has a label, which is its model."""
    assert cell.run_cost is not None
    how = "" if cell.measured else ", estimated"
    figure = marked_text(f"{figures(cell.days)} days", cell.marks)
    words = f"{row.name} on {cell.machine}{how}: {figure}, {money_text(cell.run_cost, currency)}"
    ends = None
    if cell.low_days is not None and cell.high_days is not None:
        ends = (cell.low_days, cell.high_days)
    label, size = (row.name, 7.0) if cell.chosen else ("", 4.0)
    model = row.part.model
    return Point(
        cell.run_cost, cell.days, model, label, words, size, ends=ends, hollow=not cell.measured, group=None
    )

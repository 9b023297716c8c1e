"""Format the matrix of models by machines: days and costs in each cell, with signs for what it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.base import terminal
from bench.base.terminal_width import columns
from bench.records.text import figures, money_text
from bench.report.compare.matrix import Matrix, MatrixCell
from bench.report.text.escapes import markdown_table, markdown_text

SIGNS = {
    "*": "the answer",
    "~": "estimated, not measured",
    "( )": "misses the deadline or the budget",
    "?": "perhaps misses it",
    "!": "with a mark, see below",
    "own": "a share of the machine's price in place of a rent",
}
Grid = tuple[list[str], list[list[str]]]


def cell_text(cell: MatrixCell, currency: str) -> str:
    """Format a cell: 7.74 d $667 *, or (~1.03 d $789)."""
    signs = _signs(cell)
    text = f"{'~' if '~' in signs else ''}{figures(cell.days)} d"
    if cell.run_cost is not None:
        text += f" {money_text(cell.run_cost, currency)}{' own' if cell.bought else ''}"
    text += "".join(sign for sign in ("?", "!") if sign in signs)
    text = f"({text})" if "( )" in signs else text
    return f"{text} *" if "*" in signs else text


def _signs(cell: MatrixCell) -> list[str]:
    found = {
        "*": cell.chosen,
        "~": not cell.measured,
        "( )": cell.kept == "no",
        "?": cell.kept == "perhaps",
        "!": bool(cell.marks),
        "own": cell.bought and cell.run_cost is not None,
    }
    return [sign for sign, present in found.items() if present]


def legend(matrix: Matrix) -> str:
    """Explain the signs that the matrix has, in one line."""
    present = {sign for cell in matrix.cells for sign in _signs(cell)}
    legend = "; ".join(f"{sign} {words}" for sign, words in SIGNS.items() if sign in present)
    return "days, and what a run costs to rent" + (f"; {legend}" if legend else "")


def matrix_text(matrix: Matrix, currency: str) -> str:
    """Format the matrix; if it is wider than the terminal, as several tables below each other."""
    if not matrix.rows:
        return ""
    heads, rows = _grid(matrix, currency)
    room = columns()
    blocks = []
    for first, last in _chunks(heads, rows, room):
        some = [[row[0], *row[first:last]] for row in rows]
        kept = [row for row in some if any(row[1:])] or some
        shown = terminal.plain_columns([heads[0], *heads[first:last]], range(1, 1 + last - first))
        blocks.append(terminal.table(terminal.Table(shown, kept)))
    return "\n\n".join([*blocks, terminal.wrapped([legend(matrix)], " " * 4)])


def matrix_markdown(matrix: Matrix, currency: str) -> str:
    """Format the matrix as one table with its legend below; empty for a matrix without rows."""
    if not matrix.rows:
        return ""
    heads, rows = _grid(matrix, currency)
    columns = terminal.plain_columns(heads, range(1, len(heads)))
    pipes = markdown_table(terminal.Table(columns, rows))
    return f"{pipes}\n\n{markdown_text(legend(matrix))}"


def _grid(matrix: Matrix, currency: str) -> Grid:
    """Return heads and rows of texts."""
    texts = [["" if cell is None else cell_text(cell, currency) for cell in row.cells] for row in matrix.rows]
    names = [row.name for row in matrix.rows]
    if not matrix.turned:
        return ["", *matrix.machines], [[name, *row] for name, row in zip(names, texts, strict=True)]
    turned = zip(matrix.machines, zip(*texts, strict=True), strict=True)
    return ["", *names], [[machine, *row] for machine, row in turned]


def _chunks(
    heads: Sequence[str], rows: Sequence[Sequence[str]], room: int | None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of columns that fit next to the first column, at least one column each."""
    widths = [
        max(len(head) + terminal.PADDING, *(len(row[i]) for row in rows)) + 2 for i, head in enumerate(heads)
    ]
    first, taken = 1, widths[0]
    for i in range(1, len(heads)):
        if room is not None and i > first and taken + widths[i] - 2 > room:
            yield first, i
            first, taken = i, widths[0]
        taken += widths[i]
    yield first, len(heads)

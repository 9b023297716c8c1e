"""Texts of bundles as data in CSV and in Markdown: no cell is a formula, no text is markup. Pure.

Every writer of these formats uses these functions: anybody can sign a bundle with any texts in it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from bench.base.errors import one_line
from bench.base.terminal import Table

# Spreadsheets compute a cell that begins with one of these; those of full width count in Japanese ones.
_SIGNS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
# Where a cell may begin in CSV of this country or another, with the blanks that are left out there.
_CELL_START = re.compile(r"(?:^|[;\t\r\n])[\s\ufeff\u200b]*")
_MARKUP = re.compile(r"[\\`*_\[\]<>!&#|~]")  # wherever they are
_LINK = re.compile(r"(:)(?=//)|(?<=\bwww)(\.)", re.IGNORECASE)  # many renderers make links of bare addresses
_BLOCK = re.compile(r"^(\d*)(?:(?<!\d)[-+=]|(?<=\d)[.)](?=\s|$))")  # at the beginning of a line


def csv_lines(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table as CSV, with a line for the names of its columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(csv_cell, row) for row in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    """Return a value as a cell: a text that a spreadsheet would compute gets an apostrophe before it.

    Numbers stay, True is written as true, and None as an empty cell.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = _CELL_START.sub(
            lambda start: start[0] + "'" * (value[start.end() : start.end() + 1] in _SIGNS), value
        )
        return f"'{text}" if text.startswith(("\t", "\r")) else text
    return "" if value is None else value


def markdown_text(text: str) -> str:
    """Escape a text, so that Markdown shows it letter by letter on one line, without blanks around it."""
    marked = _LINK.sub(lambda found: "\\" + found[0], _MARKUP.sub(r"\\\g<0>", one_line(text.strip())))
    return _BLOCK.sub(lambda found: f"{found[1]}\\{found[0][-1]}", marked)


def markdown_table(table: Table) -> str:
    """Write a table in Markdown; every cell and every head is escaped."""
    from tabulate import tabulate  # slow to import

    heads = [markdown_text(column.head) for column in table.columns]
    rows = [list(map(markdown_text, row)) for row in table.rows]
    sides = ["right" if column.right else "left" for column in table.columns]
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True, colalign=sides)


def markdown_code(text: str) -> str:
    """Put a text of several lines into a block of code, between fences that no line of it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"

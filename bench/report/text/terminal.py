"""Fit tables and lines to the width of the terminal. Into a file or a pipe, every line stays whole."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from tabulate import tabulate

LEAST_COLUMNS = 20  # of the terminal; in a narrower one, lines are wrapped to this width


def columns() -> int | None:
    """Return the width of the terminal; None if there is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


def wrapped(lines: Iterable[str], indent: str) -> str:
    """Wrap the lines to the terminal; continuation lines begin with `indent`."""
    room = columns()
    if room is None:
        return "\n".join(lines)
    wide = max(LEAST_COLUMNS, room)
    return "\n".join(
        textwrap.fill(line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def table(rows: Sequence[Sequence[str]], heads: Sequence[str], aligned: Sequence[str]) -> str:
    """Format a table, or a paragraph for each row if the terminal is too narrow: name, then figures."""
    # disable_numparse: cells are formatted already, and tabulate would round them again.
    lines = tabulate(rows, heads, tablefmt="simple", disable_numparse=True, colalign=aligned)
    room = columns()
    if room is None or max(map(len, lines.splitlines())) <= room:
        return lines
    return wrapped((_paragraph(row, heads) for row in rows), " " * 4)


def _paragraph(row: Sequence[str], heads: Sequence[str]) -> str:
    name = " ".join(cell for cell in row[:2] if cell)
    rest = (f"{head} {cell}".strip() for head, cell in zip(heads[2:], row[2:], strict=True) if cell)
    return f"{name}: {'; '.join(rest)}"

"""Fit tables and lines to the width of the terminal. Into a file or a pipe, every line stays whole."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from tabulate import tabulate

LEAST_NOTE = 20  # columns of a last column of notes, in which longer notes are wrapped
LEAST_COLUMNS = 20  # of the terminal; in a narrower one, lines are wrapped to this width
PADDING = 2  # that tabulate adds to each head


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


def narrowed(
    rows: Sequence[Sequence[str]], heads: Sequence[str], aligned: Sequence[str], spare: Sequence[str]
) -> str:
    """Format a table, without as many of the columns headed `spare` as the terminal has no room for.

    The first of them goes first. Notes, a last column without a head, are wrapped in their column. A
    terminal that is too narrow for what remains gets a paragraph for each row.
    """
    room = columns()
    if room is None:
        return table(rows, heads, aligned)
    for dropped in range(len(spare) + 1):
        kept = [i for i, head in enumerate(heads) if head not in spare[:dropped]]
        some = [[row[i] for i in kept] for row in rows]
        titles = [heads[i] for i in kept]
        if len(kept) > 1 and not titles[-1]:
            some = _with_wrapped_notes(some, titles, room)
        sides = [aligned[i] for i in kept]
        lines = tabulate(some, titles, tablefmt="simple", disable_numparse=True, colalign=sides)
        if max(map(len, lines.splitlines())) <= room:
            return lines
    return table(rows, heads, aligned)


def _with_wrapped_notes(rows: list[list[str]], heads: Sequence[str], room: int) -> list[list[str]]:
    """Wrap the last column into what the others leave of the room."""
    others = range(len(heads) - 1)
    taken = sum(max(PADDING + len(heads[i]), *(len(row[i]) for row in rows)) + 2 for i in others)
    width = max(LEAST_NOTE, room - taken)
    return [[*row[:-1], textwrap.fill(row[-1], width, break_on_hyphens=False)] for row in rows]


def _paragraph(row: Sequence[str], heads: Sequence[str]) -> str:
    name = " ".join(cell for cell in row[:2] if cell)
    rest = (f"{head} {cell}".strip() for head, cell in zip(heads[2:], row[2:], strict=True) if cell)
    return f"{name}: {'; '.join(rest)}"

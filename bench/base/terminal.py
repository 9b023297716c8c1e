"""Fit tables and lines to the width of the terminal. Into a file or a pipe, every line stays whole."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, TextIO

from bench.base.encoding import spelled
from bench.base.frozen import dataclass
from bench.base.strict_json import pretty_json
from bench.base.terminal_width import columns

LEAST_COLUMNS = 20  # of the terminal; in a narrower one, lines are wrapped to this width
LONGEST_WORD = 16  # columns; a longer one may be broken where a terminal has no room for it
LEAST_WRAPPED = 6  # columns of every cell, where a terminal has no room for the table otherwise
PADDING = 2  # blanks beside each head
BETWEEN = 2  # blanks between two columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: `name` is its name for --columns; a `fixed` one is always shown."""

    name: str
    head: str
    right: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A step of narrowing: the texts of a column may be wrapped, to no fewer than `least` characters."""

    name: str
    least: int


# What makes tables narrower, in this order: a name leaves its column out.
Steps = Sequence[str | Wrapped]


@dataclass(frozen=True, slots=True)
class Table:
    """The columns and the texts of a table, before it is fitted to a width."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def only(self, names: Iterable[str]) -> Table:
        """Return the columns of these names, in the order of the names."""
        places = {column.name: place for place, column in enumerate(self.columns)}
        kept = [places[name] for name in names if name in places]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    def without(self, names: Container[str]) -> Table:
        """Return the table without the columns of these names."""
        kept = [i for i, column in enumerate(self.columns) if column.name not in names]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    @property
    def widths(self) -> list[int]:
        """The characters that each column takes if no text is wrapped."""
        heads = (len(column.head) + PADDING for column in self.columns)
        cells = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [max(head, *map(_longest_line, texts), 0) for head, texts in zip(heads, cells, strict=True)]


class FittedTables(NamedTuple):
    """Tables as text that fits the terminal."""

    texts: list[str]
    left_out: list[str]  # heads of the columns for which there was no room


def cursor_stream(stream: TextIO) -> TextIO:
    """Return the stream below one that escapes all texts, for a writer that escapes them itself."""
    unescaped: TextIO = getattr(stream, "unescaped", stream)
    return unescaped


def print_json(document: Any) -> None:
    """Print a document as JSON on stdout, in ASCII only: no character of it can control a terminal."""
    sys.stdout.write(pretty_json(document).decode())


def _spelled(text: str) -> str:
    return spelled(text, getattr(sys.stdout, "encoding", None))


def wrapped(lines: Iterable[str], indent: str, otherwise: int | None = None) -> str:
    """Wrap lines to the terminal, or to `otherwise` columns without one; `indent` begins further lines."""
    room = columns() or otherwise
    lines = map(_spelled, lines)
    if room is None:
        return "\n".join(lines)
    return "\n".join(_filled(line, room, indent) for line in lines)


def message(text: str, room: int) -> str:
    """Wrap the lines of a message to `room` characters, each below its own beginning."""
    begun = ((line, len(line) - len(line.lstrip())) for line in text.split("\n"))
    return "\n".join(line if len(line) <= room else _filled(line, room, " " * (n + 4)) for line, n in begun)


def _filled(line: str, room: int, indent: str) -> str:
    wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    lines = wrap(line, max(LEAST_COLUMNS, room), subsequent_indent=indent) or [""]
    return "\n".join(lines[:1] + [_moved_left(further, room) for further in lines[1:]])


def _moved_left(line: str, room: int) -> str:
    """Take blanks from the beginning of a line whose only word, such as a digest, would not fit otherwise."""
    blanks = len(line) - len(line.lstrip())
    return line[min(blanks, max(0, len(line) - room)) :]


def table(content: Table, steps: Steps = (), room: int | None = None) -> str:
    """Format a single table, by the rules of `fitted_tables`."""
    return fitted_tables([content], steps, room=room).texts[0]


def fitted_tables(
    tables: Sequence[Table],
    steps: Steps = (),
    chosen: Sequence[str] | None = None,
    room: int | None = None,
) -> FittedTables:
    """Format tables of one kind, so that all of them fit `room` characters and have the same columns.

    If the tables are too wide, `steps` are taken in their order until they fit; after the last of them, every
    text may be wrapped. `chosen` are names of columns that are shown in place of those that the steps would
    leave; if they do not fit beside each other, each table is divided. `room` is that of the terminal unless
    it is given.
    """
    room = columns() if room is None else room
    tables = [
        Table(table.columns, [[_spelled(text) for text in row] for row in table.rows]) for table in tables
    ]
    if chosen is not None:
        names = _chosen(tables, chosen)
        tables = [table.only(names) for table in tables]
        steps = [step for step in steps if isinstance(step, Wrapped)]
    taken, (some, least) = 0, _after(tables, ())
    while not _fit(some, least, room) and taken < len(steps):
        taken += 1
        some, least = _after(tables, steps[:taken])
    if not _fit(some, least, room):
        least = _word_widths(some)
    if chosen is not None and not _fit(some, least, room):
        parts = [
            fitted_tables([table.only(names) for table in some], room=room).texts
            for names in _parts(some, least, room)
        ]
        return FittedTables(["\n\n".join(of_table) for of_table in zip(*parts, strict=True)], [])
    if not _fit(some, least, room):
        least = dict.fromkeys(least, LEAST_WRAPPED)
    texts = [_text(table, least, room) for table in some]
    dropped = [step for step in steps[:taken] if isinstance(step, str)]
    heads = {column.name: column.head for table in tables for column in table.columns}
    return FittedTables(texts, [heads[name] for name in dropped if name in heads])


def _chosen(tables: Sequence[Table], chosen: Sequence[str]) -> list[str]:
    """Return the names of the columns to show: fixed ones where they are, the chosen ones between them."""
    fixed = {column.name: i for table in tables for i, column in enumerate(table.columns) if column.fixed}
    last = {table.columns[-1].name for table in tables} & fixed.keys()
    free = [name for name in dict.fromkeys(chosen) if name not in fixed]
    return [*(name for name in fixed if name not in last), *free, *last]


def _parts(tables: Sequence[Table], least: Mapping[str, int], room: int | None) -> Iterator[list[str]]:
    """Divide columns that do not fit beside each other; every part has the fixed ones before the last column.

    A part is as wide as the room, unless one column beside the fixed ones is wider already.
    """
    names = list(dict.fromkeys(column.name for one in tables for column in one.columns))
    fixed = {column.name for one in tables for column in one.columns[:-1] if column.fixed}
    part = list[str]()
    for name in names:
        wider = [each for each in names if each in fixed or each in part or each == name]
        if part and name not in fixed and not _fit([one.only(wider) for one in tables], least, room):
            yield [each for each in names if each in fixed or each in part]
            part = []
        part += [name] * (name not in fixed)
    yield [each for each in names if each in fixed or each in part]


def _after(tables: Sequence[Table], steps: Steps) -> tuple[list[Table], Mapping[str, int]]:
    """Leave out the columns of these steps; return the least width of those that may be wrapped, too."""
    dropped = {step for step in steps if isinstance(step, str)}
    least = {step.name: step.least for step in steps if isinstance(step, Wrapped)}
    return [table.without(dropped) for table in tables], least


def _word_widths(tables: Sequence[Table]) -> dict[str, int]:
    """Return by column how many characters its longest word has, up to LONGEST_WORD."""
    widths: dict[str, int] = {}
    for table in tables:
        for i, column in enumerate(table.columns):
            words = " ".join([column.head, *(row[i] for row in table.rows)]).split() or [""]
            widths[column.name] = min(LONGEST_WORD, max(widths.get(column.name, 1), *map(len, words), 1))
    return widths


def _fit(tables: Sequence[Table], least: Mapping[str, int], room: int | None) -> bool:
    return room is None or all(_total(_least_widths(table, least)) <= room for table in tables)


def _least_widths(table: Table, least: Mapping[str, int]) -> list[int]:
    return [
        min(width, max(least[column.name], _head_width(column, least))) if column.name in least else width
        for column, width in zip(table.columns, table.widths, strict=True)
    ]


def _head_width(column: Column, least: Mapping[str, int]) -> int:
    words = textwrap.wrap(column.head, least[column.name], break_on_hyphens=False)
    return max(map(len, words), default=0) + PADDING


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + BETWEEN * (len(widths) - 1)


def _text(table: Table, least: Mapping[str, int], room: int | None) -> str:
    """Format a table; the widest of the columns that may be wrapped gives way first."""
    widths, limits = table.widths, _least_widths(table, least)
    while room is not None and _total(widths) > room and widths != limits:
        _, widest = max((width, i) for i, width in enumerate(widths) if width > limits[i])
        widths[widest] -= 1
    every = [*enumerate(table.columns)]
    narrow = {i for i, width in enumerate(table.widths) if widths[i] < width}
    heads = [_wrapped_to(c.head, widths[i] - PADDING) if i in narrow else c.head for i, c in every]
    rows = [
        [_wrapped_to(text, widths[i]) if i in narrow else text for i, text in enumerate(row)]
        for row in table.rows
    ]
    rule = (" " * BETWEEN).join("-" * width for width in widths)
    body = [_row_lines(table.columns, row, widths) for row in rows]
    return "\n".join([_row_lines(table.columns, heads, widths), rule, *body])


def _row_lines(columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int]) -> str:
    """Format one row, in as many lines as its longest text has."""
    cells = [
        [line.rjust(width) if column.right else line.ljust(width) for line in text.split("\n")]
        for column, text, width in zip(columns, texts, widths, strict=True)
    ]
    lines = zip_longest(*cells)
    return "\n".join(
        (" " * BETWEEN).join(cell or " " * width for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _wrapped_to(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, max(1, width), break_on_hyphens=False))


def _longest_line(text: str) -> int:
    return max(map(len, text.split("\n")))


def plain_columns(heads: Sequence[str], right: Iterable[int] = ()) -> list[Column]:
    """Return columns whose names are their heads; `right` has the positions of those to align right."""
    rights = set(right)
    return [Column(head or f"column {i}", head, right=i in rights) for i, head in enumerate(heads)]

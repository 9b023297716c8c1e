"""Print a push's output on the operator's terminal; no other module of push prints.

Parts of the texts come from nodes and bundles, so every line and cell is escaped here: no text can move the
cursor, set the window's title, reverse the writing or begin a new line. tests/push/test_terminal.py finds
other prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console

from bench.base.errors import one_line
from bench.base.terminal import Table, Wrapped, cursor_stream, plain_columns, print_json, table
from bench.base.terminal_width import columns

LEAST_REASON = 20  # columns of a last column


def tell(*lines: object, file: TextIO | None = None) -> None:
    """Print each text as one line, on stdout unless another stream is given."""
    for line in lines:
        print(one_line(str(line)), file=file or sys.stdout)


def tell_block(text: str) -> None:
    """Print a text whose line breaks are bench's own."""
    tell(*text.split("\n"))


def tell_table(headers: Sequence[str], rows: Iterable[Sequence[object]], widest: int | None = None) -> None:
    """Print a table that fits the terminal; its last column has at most `widest` characters."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    heads = plain_columns([*map(one_line, headers)])
    *others, last = (column.name for column in heads)
    steps = [Wrapped(last, LEAST_REASON), *(Wrapped(name, LEAST_REASON) for name in others)]
    one = Table(heads, cells)
    most = None if widest is None else sum(one.widths[:-1]) + 2 * len(others) + widest
    room = min((width for width in (columns(), most) if width is not None), default=None)
    tell_block(table(one, steps, room))


def tell_json(document: Any) -> None:
    """Print a document of `--json` on stdout, with every control character escaped."""
    print_json(document)


def stderr_console() -> Console:
    """Return rich's console on stderr, without markup: brackets in a text mean nothing to it."""
    return Console(file=cursor_stream(sys.stderr), highlight=False, markup=False, emoji=False, soft_wrap=True)

"""A line at the bottom of a terminal that is drawn again and again, with the lines of a log above it.

In:  parts of a line, each with a weight; whole lines. Writes to one stream, in practice stderr. If that is
not a terminal, or one that cannot move its cursor (TERM=dumb), nothing is drawn, and lines stay whole. In a
container, the line is written for the bench outside, which has the terminal and draws the line there.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from bench.base.colour import DIM, RESET, painted, wanted
from bench.base.encoding import spelled
from bench.base.errors import one_line, printable
from bench.base.terminal import cursor_stream
from bench.base.terminal_width import USUAL_COLUMNS

BETWEEN = "  "
COLUMNS_OUTSIDE = "BENCH_COLUMNS_OUTSIDE"  # set in a container: the width of the terminal outside of it
TO_BEGINNING = "\r\x1b[K"  # moves the cursor to the beginning of the line and empties the line


@dataclass(frozen=True, slots=True)
class LinePart:
    """A piece of the line; where there is no room for all, the part with the least weight goes first."""

    text: str
    weight: int


def fitted(parts: Sequence[LinePart], room: int) -> str:
    """Join the parts, in their order, that fit `room` characters; the last one left is cut."""
    kept = [part for part in parts if part.text]
    while len(kept) > 1 and len(joined(kept)) > room:
        kept.remove(min(kept, key=lambda part: part.weight))
    return joined(kept)[: max(0, room)]


def joined(parts: Sequence[LinePart]) -> str:
    """Join the texts of all parts, however long the line becomes."""
    return BETWEEN.join(part.text for part in parts if part.text)


class LiveLine:
    """Draws one line at the bottom of a terminal, and prints log lines above it.

    The width of the terminal is read at each drawing, so no signal about its change is needed.
    """

    def __init__(self, file: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self._file = cursor_stream(file)
        terminal = file.isatty()
        width = environment.get(COLUMNS_OUTSIDE, "")
        self._columns_outside = int(width) if re.fullmatch("[1-9][0-9]{0,3}", width) else None
        moves = terminal and environment.get("TERM", "dumb") not in ("", "dumb")
        self.drawn = moves or self._columns_outside is not None
        self._painted: Callable[[str], str] = str
        self._coloured = wanted(environment, terminal=terminal)
        if self._coloured:
            self._painted = painted
        self._visible = False

    def draw(self, parts: Sequence[LinePart]) -> None:
        """Replace the line. The last column stays empty: some terminals go to the next line after it."""
        if not self.drawn:
            return
        safe = [LinePart(self._spelled(one_line(part.text)), part.weight) for part in parts]
        self._write(TO_BEGINNING + self._painted(fitted(safe, self.columns - 1)))
        self._visible = True

    def print(self, text: str, *, dim: bool = False) -> None:
        """Print lines above the drawn line, which appears again when it is drawn next."""
        self.clear()
        for line in printable(text).split("\n"):
            shown = self._wrapped(line)
            self._write((f"{DIM}{shown}{RESET}" if dim and self._coloured else self._painted(shown)) + "\n")

    def clear(self) -> None:
        """Remove the drawn line, so that other programs can write; nothing happens if none is drawn."""
        if self._visible:
            self._write(TO_BEGINNING)
            self._visible = False

    @property
    def columns(self) -> int:
        """The width of the terminal now; a lost terminal has the usual width."""
        if self._columns_outside is not None:
            return self._columns_outside
        with suppress(OSError, ValueError):
            return os.get_terminal_size(self._file.fileno()).columns or USUAL_COLUMNS
        return USUAL_COLUMNS

    def _wrapped(self, line: str) -> str:
        if not self.drawn:
            return line
        options = {"subsequent_indent": " " * 4, "break_long_words": False, "break_on_hyphens": False}
        return textwrap.fill(self._spelled(line), max(20, self.columns), **options)  # type: ignore[arg-type]

    def _spelled(self, text: str) -> str:
        return spelled(text, getattr(self._file, "encoding", None))

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

"""Show on this terminal what a container prints. A stranger may have made its image.

In:  bytes of the container's stdout and stderr. Out: their text, in which everything that a terminal would
interpret is escaped. A carriage return begins a new line. One sequence is understood, the one that `LiveLine`
writes: this process draws the text that follows it, escaped, as its own live line.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
import threading
from collections.abc import Mapping

from bench.base.errors import BenchError, printable
from bench.base.live_line import COLUMNS_OUTSIDE, TO_BEGINNING, LinePart, LiveLine
from bench.base.terminal_width import columns

MOST_CHARACTERS = 2**13  # of a line; a longer one is shown in pieces, so that it needs little memory
_BREAK = re.compile(rf"{re.escape(TO_BEGINNING)}|\r\n|\r|\n")
_PART_OF_BREAK = re.compile(r"\r(\x1b\[?)?\Z")


def settings_of_terminal() -> Mapping[str, str]:
    """Return variables by which bench in a container fits its tables and its live line to this terminal."""
    line = LiveLine(sys.stderr)
    fitted = {COLUMNS_OUTSIDE: str(line.columns)} if line.drawn else {}
    return fitted | ({"COLUMNS": str(columns())} if sys.stdout.isatty() and columns() else {})


class ContainerOutput:
    """The output of one container. Pieces may come from two threads."""

    def __init__(self) -> None:
        self._line = LiveLine(sys.stderr)
        self._lock = threading.Lock()
        self._decode_out = io.IncrementalNewlineDecoder(_utf8(), translate=True)
        self._decode_err = _utf8()
        self._rest = ""  # of stderr: a line that has no end yet
        self._failure: OSError | BenchError | None = None

    def out(self, data: bytes, *, last: bool = False) -> None:
        """Write a piece of stdout. If that fails, the container goes on, and `end` raises the error."""
        with self._lock:
            text = printable(self._decode_out.decode(data, final=last))
            if not text or self._failure:
                return
            self._line.clear()
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except (OSError, BenchError) as error:
                self._failure = error

    def err(self, data: bytes, *, last: bool = False) -> None:
        """Write the lines of stderr that end within this piece, and draw what follows a cleared line."""
        with self._lock:
            self._rest += self._decode_err.decode(data, final=last)
            held = None if last else _PART_OF_BREAK.search(self._rest)
            known, held_back = (self._rest[: held.start()], held[0]) if held else (self._rest, "")
            self._rest = self._shown(known) + held_back

    def _shown(self, text: str) -> str:
        """Show the whole lines of a text, and return the rest."""
        start, drawn = 0, False
        for found in _BREAK.finditer(text):
            if found[0] != TO_BEGINNING:
                self._line.print(text[start : found.start()])
            drawn = found[0] == TO_BEGINNING
            start = found.end()
        rest = text[start:]
        if len(rest) > MOST_CHARACTERS:
            self._line.print(rest)
            return ""
        if drawn:
            self._line.draw([LinePart(rest, 1)])
        return TO_BEGINNING + rest if drawn else rest

    def end(self) -> None:
        """Show what has no line break, clear the live line, and raise the error of stdout if it had one."""
        self.out(b"", last=True)
        self.err(b"", last=True)
        if rest := self._rest.rpartition(TO_BEGINNING)[2]:
            self._line.print(rest)
        self._rest = ""
        self._line.clear()
        if self._failure:
            raise self._failure


def _utf8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")

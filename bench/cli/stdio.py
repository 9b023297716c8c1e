"""Wrap stdout and stderr for the length of a command.

A failed write to stdout raises EnvironmentCannot; a failed write to stderr is ignored, since a run may
outlive its terminal. Characters that the locale's encoding lacks are replaced, for example ± by +-. The
control characters that a terminal obeys are escaped in all texts on both streams. Only progress moves the
cursor, by `bench.base.terminal.cursor_stream`, and escapes its texts itself.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from bench.base.encoding import IN_ASCII
from bench.base.errors import EnvironmentCannot, printable
from bench.base.terminal_width import columns

if TYPE_CHECKING:
    from bench.cli.pager import Pager


class _Stream:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write a text; what happens if that fails is decided by `_try`."""
        self.used = True
        self._try(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        """Hand buffered text to the system; what happens if that fails is decided by `_try`."""
        self._try(self._file.flush)

    def _try(self, call: Callable[[], object]) -> None:
        raise NotImplementedError


class Stdout(_Stream):
    """The command's stdout; on a terminal it goes through a pager if `paged` is set before the first text.

    Every text has the control characters of terminals escaped; bench's own colours come from `write_painted`.
    """

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self.paged = False
        self.terminal = file.isatty()
        self._pager: Pager | None = None

    def write(self, text: str) -> int:
        """Write a text with the control characters of terminals escaped; return its length."""
        self._send(_escaped(text))
        return len(text)

    def write_painted(self, text: str) -> None:
        """Write a text for people in colours."""
        from bench.base.colour import painted  # --help has no colours

        self._send(painted(_escaped(text)))

    def _send(self, text: str) -> None:
        if self.paged and self.terminal and not self.used:
            self._start_pager()
        super().write(text)

    def _start_pager(self) -> None:
        from bench.cli.pager import Pager, pager_of  # subprocess is slow to import

        if (command := pager_of(os.environ)) is not None:
            self._file.flush()
            self._pager = Pager(command, self._file)
            self._file = self._pager.stdin

    def end(self) -> None:
        """Wait until the user has left the pager, if there is one."""
        if self._pager is not None:
            self._pager.wait()

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BrokenPipeError:  # the reader closed stdout early: main() ends the command
            raise
        except OSError as error:
            leave(sys.stdout)
            raise EnvironmentCannot(f"cannot be written: {error.strerror}", where="stdout") from None


class _UnescapedStderr(_Stream):
    """stderr whose failed writes are ignored: the terminal, the reader or the disk space may be gone."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self.refused = False

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError:
            self.refused = True


class Stderr(_UnescapedStderr):
    """stderr with the control characters of terminals escaped, and its lines wrapped to a terminal's width.

    `unescaped` is the stream without either, for progress, which does both itself.
    """

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self.unescaped = _UnescapedStderr(file)
        self._terminal = file.isatty()

    def write(self, text: str) -> int:
        """Write a text, escaped and wrapped; return the length of the given text."""
        super().write(self._wrapped(_escaped(text)))
        return len(text)

    def _wrapped(self, text: str) -> str:
        room = columns(self._file) if self._terminal else None
        if room is None or len(text) <= room:
            return text
        from bench.base.encoding import spelled
        from bench.base.terminal import message  # most texts are short

        return message(spelled(text, self._file.encoding), room)


@contextmanager
def wrapped_streams() -> Iterator[Stdout]:
    """Replace sys.stdout and sys.stderr by wrapped ones until the command has ended and stdout is flushed."""
    _open_closed_streams()
    _replace_unencodable()
    before, stdout, errors = (sys.stdout, sys.stderr), Stdout(sys.stdout), Stderr(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, errors)
    try:
        yield stdout
        stdout.flush()
    finally:
        stdout.end()
        sys.stdout, sys.stderr = before
        if errors.refused or errors.unescaped.refused:
            leave(sys.stderr)


def show(text: str) -> None:
    """Print a text for people, in colours if stdout has them."""
    from bench.base.colour import wanted  # --help has no colours

    stdout: object = sys.stdout
    if isinstance(stdout, Stdout) and wanted(os.environ, terminal=stdout.terminal):
        stdout.write_painted(text + "\n")
    else:
        print(text)


def _escaped(text: str) -> str:
    lines = text.replace("\n", "").replace("\t", "")
    return text if lines.isprintable() else printable(text)


def _open_closed_streams() -> None:
    """Open closed streams to /dev/null: else the next opened file would get their number and their text."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115


def _replace_unencodable() -> None:
    """Replace characters that the locale's encoding lacks: an error would lose the results of a long run."""
    codecs.register_error("bench-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if codecs.lookup(stream.encoding or "utf-8").name != "utf-8":
            cast(Any, stream).reconfigure(errors="bench-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    replacement = IN_ASCII.get(error.object[error.start])
    if replacement is None:
        return codecs.backslashreplace_errors(error)
    return replacement, error.start + 1


def leave(stream: TextIO) -> None:
    """Send buffered text to /dev/null: Python would try to write it at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

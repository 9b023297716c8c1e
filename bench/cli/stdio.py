"""stdout and stderr as commands see them: what stdout refuses is told as that, and no defect; what stderr
refuses ends nothing, since a run may outlive who reads it. ± where there is none is +-.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO, cast

from bench.base.errors import EnvironmentCannot

IN_ASCII = {"±": "+-", "…": "...", "·": ".", "°": " "}  # of our own texts; names of others' are escaped


class _Stream:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        self.used = True
        with self._refusals():
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._refusals():
            self._file.flush()

    def _refusals(self) -> AbstractContextManager[None]:
        raise NotImplementedError


class Stdout(_Stream):
    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # its reader has seen enough
            raise
        except OSError as error:
            leave(sys.stdout)
            raise EnvironmentCannot(f"cannot be written: {error.strerror}", where="stdout") from None


class Stderr(_Stream):
    """Its terminal may be lost, its reader gone, its disk full: what was begun goes on all the same."""

    refused = False

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.refused = True


@contextmanager
def wrapped_streams() -> Iterator[Stdout]:
    """Until the command is over, and all that it wrote has gone out."""
    _open_what_is_closed()
    _spell_everything()
    before, stdout, errors = (sys.stdout, sys.stderr), Stdout(sys.stdout), Stderr(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, errors)
    try:
        yield stdout
        stdout.flush()
    finally:
        sys.stdout, sys.stderr = before
        if errors.refused:
            leave(sys.stderr)


def _open_what_is_closed() -> None:
    """Or the first file that is opened would get its number, and what is meant for people."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115


def _spell_everything() -> None:
    """A figure of an hour's run is not lost to a locale that has no ±."""
    codecs.register_error("bench-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if codecs.lookup(stream.encoding or "utf-8").name != "utf-8":
            cast(Any, stream).reconfigure(errors="bench-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    own = IN_ASCII.get(error.object[error.start])
    return (own, error.start + 1) if own else codecs.backslashreplace_errors(error)


def leave(stream: TextIO) -> None:
    """Or Python itself would try to write what is left, and fail, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

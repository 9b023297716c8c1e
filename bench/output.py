"""stdout as commands see it: what it refuses is told as that, and no defect; ± where there is none is +-."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from bench.errors import EnvironmentCannot

IN_ASCII = {"±": "+-", "…": "...", "·": ".", "°": " "}  # of our own texts; names of others' are escaped


class Stdout:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        self.used = True
        with _refusals():
            return self._file.write(text)

    def flush(self) -> None:
        with _refusals():
            self._file.flush()


@contextmanager
def told() -> Iterator[Stdout]:
    """Until the command is over, and all that it wrote has gone out."""
    _spell_everything()
    before, told = sys.stdout, Stdout(sys.stdout)
    sys.stdout = cast(TextIO, told)
    try:
        yield told
        told.flush()
    finally:
        sys.stdout = before


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


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # its reader has seen enough
        raise
    except OSError as error:
        leave()
        raise EnvironmentCannot(f"cannot be written: {error.strerror}", where="stdout") from None


def leave() -> None:
    """Or Python itself would try to write what is left, and fail, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

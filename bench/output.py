"""stdout as commands see it: what it refuses is told as that, and no defect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from bench.errors import EnvironmentCannot


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
    before, told = sys.stdout, Stdout(sys.stdout)
    sys.stdout = cast(TextIO, told)
    try:
        yield told
        told.flush()
    finally:
        sys.stdout = before


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

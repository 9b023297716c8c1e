"""The journal of a run: append-only, fsynced, one JSON object a line.

A line counts once its newline is on disk. A torn last line is what a crash leaves: it is cut off,
and the trial behind it runs again. Anything else that does not parse is damage, and refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.strict_json import DecodeError, canonical_json, strict_loads

FILE_NAME = "journal.jsonl"
ELSEWHERE = "--out names another directory: there the run begins anew"


class Journal:
    """Holds the run's lock as long as it is open: one supervisor a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._file = self.path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            advice = "wait until it ends, or end it; without --resume another one begins"
            raise BadInput("this run is already going on", where=str(folder), advice=advice) from None
        self.events = list(read_journal(self.path))
        self._cut_torn_line()

    def append(self, event: dict[str, Any]) -> None:
        """Whole or not at all: half a line, of a disk that is full, would damage the next one."""
        before, rest = self._file.seek(0, os.SEEK_END), canonical_json(event) + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(before)
            raise
        self.events.append(event)

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_of_another(path: Path, manifest: str) -> bool:
    """Whose first line says so; then what is damaged in it is no matter."""
    with suppress(OSError, DecodeError), path.open("rb") as file:
        header = strict_loads(file.readline())
        return isinstance(header, dict) and header.get("manifest", manifest) != manifest
    return False


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a torn last one is left out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise EnvironmentCannot(message, where=str(path), advice=ELSEWHERE) from None
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            event = strict_loads(line)
        except DecodeError as error:
            message = f"line {number} is damaged: {error}"
            raise BadInput(message, where=str(path), advice=ELSEWHERE) from None
        if not isinstance(event, dict):
            raise BadInput(f"line {number} is no event", where=str(path), advice=ELSEWHERE)
        yield event

"""The journal of a run: append-only, fsynced, one JSON object a line.

A line counts once its newline is on disk. A crash leaves at most a torn last line, which is cut off; the
trial of that line runs again. Any other line that does not parse is damage and is refused. events.py
defines the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.files import AppendOnlyLines
from bench.base.strict_json import DecodeError, canonical_json, strict_loads

FILE_NAME = "journal.jsonl"
ELSEWHERE = "--out names another directory: there the run starts over"


class Journal:
    """The journal of the run in `folder`, open for appending. Holds the run's lock: one supervisor a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        try:
            self._lines = AppendOnlyLines(self.path, wait=False)
        except BlockingIOError:
            advice = "wait until it ends, or end it; without --resume a new run begins"
            raise BadInput("this run is already going on", where=str(folder), advice=advice) from None
        self.events = list(_parse(self.path, self._lines.read()))

    def append(self, event: dict[str, Any]) -> None:
        """Write an event as one line, and keep it among `events`."""
        self._lines.append(canonical_json(event))
        self.events.append(event)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_of_another(path: Path, manifest: str) -> bool:
    """True if the journal's first line names another manifest; damage in later lines does not matter then."""
    with suppress(OSError, DecodeError), path.open("rb") as file:
        header = strict_loads(file.readline())
        return isinstance(header, dict) and header.get("manifest", manifest) != manifest
    return False


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole line of a journal, parsed; leave out a torn last one. BadInput for a damaged line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise EnvironmentCannot(message, where=str(path), advice=ELSEWHERE) from None
    yield from _parse(path, data[: data.rfind(b"\n") + 1].splitlines())


def _parse(path: Path, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            event = strict_loads(line)
        except DecodeError as error:
            message = f"line {number} is damaged: {error}"
            raise BadInput(message, where=str(path), advice=ELSEWHERE) from None
        if not isinstance(event, dict):
            raise BadInput(f"line {number} is not a JSON object", where=str(path), advice=ELSEWHERE)
        yield event

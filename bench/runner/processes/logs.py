"""Logs of worker processes: cut while they are written, or to their beginning and end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.bundle.tar_format import MAX_MEMBER_BYTES

LOG_BYTES = 100_000  # what is left of a log that is too long
CUT = b"\n[...]\n"


def keep_short(log: Path, most_bytes: int = 2 * MAX_MEMBER_BYTES) -> None:
    """While it is written: of one that would fill the disk the beginning stays, and what comes from now."""
    with suppress(OSError):
        if log.stat().st_size > most_bytes:
            with log.open("r+b") as file:
                file.seek(LOG_BYTES // 2)
                file.write(CUT)  # first, or what is written meanwhile comes before it
                file.truncate()


def head_and_tail(path: Path, most_bytes: int = LOG_BYTES) -> bytes:
    """A log, or where it is longer than this, its beginning and its end."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
        if len(data) <= most_bytes:
            return data
        half = min(LOG_BYTES, most_bytes) // 2
        file.seek(-half, 2)
        return data[:half] + CUT + file.read()

"""Keep logs of worker processes short: while they are written, and for a bundle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.bundle.tar_format import MAX_MEMBER_BYTES

LOG_BYTES = 100_000  # kept of a log that is too long
CUT = b"\n[...]\n"


def keep_short(log: Path, most_bytes: int = 2 * MAX_MEMBER_BYTES) -> None:
    """Truncate a log that is still written once it is longer than `most_bytes`, so that it fills no disk.

    Its beginning stays, and what is appended from now on.
    """
    with suppress(OSError):
        if log.stat().st_size > most_bytes:
            with log.open("r+b") as file:
                file.seek(LOG_BYTES // 2)
                file.write(CUT)  # before truncating, or output written meanwhile would come before it
                file.truncate()


def head_and_tail(path: Path, most_bytes: int = LOG_BYTES) -> bytes:
    """The log, or its beginning and its end if it is longer than `most_bytes`."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
        if len(data) <= most_bytes:
            return data
        half = min(LOG_BYTES, most_bytes) // 2
        file.seek(-half, 2)
        return data[:half] + CUT + file.read()

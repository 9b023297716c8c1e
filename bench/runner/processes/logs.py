"""Keep logs of worker processes short: while they are written, and for a bundle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bench.bundle.tar_format import MAX_MEMBER_BYTES

LOG_BYTES = 100_000  # kept of a log that is longer than allowed
MOST_WRITTEN_BYTES = 2 * MAX_MEMBER_BYTES  # to a log before it is truncated
CUT = b"\n[...]\n"


def keep_short(log: Path) -> None:
    """Truncate a log that a worker still writes if it is too long, so that it does not fill the disk.

    The log keeps its beginning, and all that the worker appends later.
    """
    with suppress(OSError):
        if log.stat().st_size > MOST_WRITTEN_BYTES:
            with log.open("r+b") as file:
                file.seek(LOG_BYTES // 2)
                file.write(CUT)  # before truncating, or new output would come before the mark
                file.truncate()


def head_and_tail(path: Path, most_bytes: int = LOG_BYTES) -> bytes:
    """Return the log, or its beginning and its end if it is longer than `most_bytes`."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
        if len(data) <= most_bytes:
            return data
        half = min(LOG_BYTES, most_bytes) // 2
        file.seek(-half, 2)
        return data[:half] + CUT + file.read()

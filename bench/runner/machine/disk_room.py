"""Recognise that a disk has no room for temporary files.

A full disk says nothing about a trial: the trial stays open, and the run's error names the folder.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.base.errors import EnvironmentCannot
from bench.base.sizes import bytes_text

# The kernel's error texts, which many libraries repeat, and numpy's, which checks before it writes.
FULL = re.compile(r"No space left on device|Disk quota exceeded|Not enough free space to write")
SHARED_MEMORY = re.compile(r"shared memory|/dev/shm|</torch_")  # in such a text FULL is not about a disk
ADVICE = "make room there, or set TMPDIR to another disk; --resume then continues with what was measured"


class TooFull(EnvironmentCannot):
    """A disk has room left, but too little."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """How a job ended whose disk was full; takes the place of the outcome in the job's final event."""

    where: str  # folder
    reason: str
    kind: Literal["no-room"] = "no-room"


def no_room(error: BaseException, scratch: Path) -> NoRoom | None:
    """Return the full disk that caused `error`; None if `error` has another cause."""
    for cause in with_causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        full = number in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(cause))
        if isinstance(cause, TooFull) or (full and not SHARED_MEMORY.search(str(cause))):
            name = getattr(cause, "filename", None)
            return full_at(Path(name) if isinstance(name, str) else scratch, _line_about_disk(cause))
    return None


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes in a traceback's order: compilers and hooks wrap the original error."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def full_at(path: Path, why: str) -> NoRoom:
    """Describe the full disk that holds `path`, by the nearest folder above `path` that outlives the job."""
    lasting = (p for p in path.absolute().parents if p.is_dir() and not p.name.startswith("bench-"))
    folder = next(lasting, Path("/"))
    free = bytes_text(shutil.disk_usage(folder).free)
    return NoRoom(str(folder), f"no room for temporary files, {free} free: {why}")


def require_room(final: dict[str, Any]) -> dict[str, Any]:
    """Return a job's final event unchanged; EnvironmentCannot if it says that the disk was full."""
    outcome = final.get("outcome", {})
    if outcome.get("kind") == "no-room":
        raise EnvironmentCannot(outcome["reason"], where=outcome["where"], advice=ADVICE)
    return final


def _line_about_disk(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if FULL.search(line)), lines[0]).strip()[:300]

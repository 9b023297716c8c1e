"""A disk without room for temporary files: no word about the trial, which stays open until there is some."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from bench.base.errors import EnvironmentCannot
from bench.records.text import bytes_text

# As the kernel says it, whoever repeats it; numpy asks for the room first, in words of its own.
FULL = re.compile(r"No space left on device|Disk quota exceeded|Not enough free space to write")
OF_MEMORY = re.compile(r"shared memory|/dev/shm|</torch_")  # the same words of what is no disk
T = TypeVar("T")
ADVICE = "make room there, or let TMPDIR name another disk; --resume then goes on with what was measured"


class TooFull(EnvironmentCannot):
    """There is some room, and too little."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Stands where a job's outcome would, and is none."""

    where: str
    reason: str
    kind: Literal["no-room"] = "no-room"


def no_room(error: BaseException, scratch: Path) -> NoRoom | None:
    """What is full, if that is why it failed."""
    for one in with_causes(error):
        number = one.errno if isinstance(one, OSError) else None
        full = number in (errno.ENOSPC, errno.EDQUOT) or FULL.search(str(one))
        if isinstance(one, TooFull) or (full and not OF_MEMORY.search(str(one))):
            named = getattr(one, "filename", None)
            return full_at(Path(named) if isinstance(named, str) else scratch, _telling(one))
    return None


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """As a traceback shows them: what a compiler or a hook raises may only stand for what happened to it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def full_at(path: Path, why: str) -> NoRoom:
    """Names the folder that is still there when the job's own are gone."""
    lasting = (p for p in path.absolute().parents if p.is_dir() and not p.name.startswith("bench-"))
    folder = next(lasting, Path("/"))
    free = bytes_text(shutil.disk_usage(folder).free)
    return NoRoom(str(folder), f"no room for temporary files, {free} free: {why}")


def require_room(final: T) -> T:
    """A job's end, unless it is none of its own."""
    outcome = final.get("outcome") if isinstance(final, Mapping) else None
    if isinstance(outcome, Mapping) and outcome.get("kind") == "no-room":
        raise EnvironmentCannot(outcome["reason"], where=outcome["where"], advice=ADVICE)
    return final


def _telling(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    told = next((line for line in lines if FULL.search(line)), lines[0] if lines else type(error).__name__)
    return told.strip()[:300]

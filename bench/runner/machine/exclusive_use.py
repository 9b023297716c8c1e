"""Warn when two runs or node checks measure on the same GPU, or CPU, at once. Neither is stopped.

Each device has a lock file in /tmp. A measuring process holds a shared lock, which the kernel releases when
the process ends, and touches the file when it begins. Containers share these files only if they share /tmp.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PLACE = Path("/tmp")  # not TMPDIR, which may differ between users
WRONG = "figures of both will be wrong"


@contextmanager
def warn_of_others(devices: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """Warn by `say` if another bench already measures on these devices, or begins to during the block.

    `devices` are UUIDs of GPUs, or "cpu".
    """
    with ExitStack() as stack:
        files = [file for name in devices if (file := _open(PLACE / f"bench-measures-{name}")) is not None]
        for file in files:
            stack.callback(os.close, file)
        if since := [_begun_at(file) for file in files if not _is_first(file)]:
            say(f"another bench measures on this machine since {_clock(min(since))}: {WRONG}")
        begun = [_touch(file) for file in files]
        yield
        later = [now for now, before in zip(map(_begun_at, files), begun, strict=True) if now != before]
        if later:
            say(f"another bench began on this machine at {_clock(max(later))}: {WRONG}")


def _open(path: Path) -> int | None:
    """Open the shared, world-writable lock file; return None if that fails, and no warning is possible."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with suppress(FileExistsError):
            new_file = os.open(path, flags | os.O_CREAT | os.O_EXCL)
            os.fchmod(new_file, 0o666)
            return new_file
        file = os.open(path, flags)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def _is_first(file: int) -> bool:
    """Take the shared lock; return True if no other process held it."""
    first = False
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        first = True
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return first


def _begun_at(file: int) -> float:
    """Return the unix time at which a process last began to measure on the device."""
    return os.fstat(file).st_mtime


def _touch(file: int) -> float:
    os.utime(file)
    return _begun_at(file)


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))

"""Warn when two runs or node checks measure on the same GPU, or CPU, at once; both go on.

Each device has a lock file in /tmp. A measuring process holds a shared lock, which the kernel releases when
the process ends, and touches the file when it begins. Containers share these files only if they share /tmp.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PLACE = Path("/tmp")  # not TMPDIR, which may differ between users
WRONG = "figures of both will be wrong"
BEAT_SECONDS = 1.0


class Neighbours:
    """Other benches on the same devices. All of them touch the devices' lock files once a second."""

    def __init__(self, files: Sequence[int], say: Callable[[str], None]) -> None:
        self._files = files
        self._say = say
        self._silent = False  # once the user was warned
        self._touched: list[float] = []
        self._seen_at = self._asked_at = -math.inf  # on the monotonic clock
        self._lock = threading.Lock()  # a beat and a question would take each other's touch for a neighbour's

    def begin(self) -> None:
        """Report another bench that measures already, and touch the files for the first time."""
        if since := [_begun_at(file) for file in self._files if not _is_first(file)]:
            self._tell(f"another bench measures on this machine since {_clock(min(since))}")
        self._touched = list(map(_touch, self._files))

    def beat(self) -> None:
        """Look whether another bench has touched the files since the last beat, and touch them."""
        with self._lock:
            pairs = zip(map(_begun_at, self._files), self._touched, strict=True)
            if later := [now for now, before in pairs if now != before]:
                self._tell(f"another bench began on this machine at {_clock(max(later))}")
            self._touched = list(map(_touch, self._files))

    def seen(self) -> bool:
        """Whether another bench measured since the last call, or in the two beats before it.

        Without these beats, a trial that is shorter than a beat would not be disturbed.
        """
        self.beat()
        since, self._asked_at = self._asked_at - 2 * BEAT_SECONDS, time.monotonic()
        return self._seen_at >= since and self._seen_at > -math.inf

    def _tell(self, text: str) -> None:
        self._seen_at = time.monotonic()
        if not self._silent:
            self._silent = True
            self._say(f"{text}: {WRONG}")


@contextmanager
def warn_of_others(devices: Sequence[str], say: Callable[[str], None]) -> Iterator[Neighbours]:
    """Warn by `say` if another bench already measures on these devices, or begins to during the block.

    `devices` are UUIDs of GPUs, or "cpu".
    """
    with ExitStack() as stack:
        files = [file for name in devices if (file := _open(PLACE / f"bench-measures-{name}")) is not None]
        for file in files:
            stack.callback(os.close, file)
        neighbours = Neighbours(files, say)
        neighbours.begin()
        ended = threading.Event()

        def beat_until_ended() -> None:
            while not ended.wait(BEAT_SECONDS):
                neighbours.beat()

        thread = threading.Thread(target=beat_until_ended, name="neighbours", daemon=True)
        thread.start()
        try:
            yield neighbours
        finally:
            ended.set()
            thread.join()
            neighbours.beat()


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
    """Return the unix time at which a process last touched the device's file."""
    return os.fstat(file).st_mtime


def _touch(file: int) -> float:
    os.utime(file)
    return _begun_at(file)


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))

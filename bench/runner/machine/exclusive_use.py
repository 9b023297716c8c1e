"""Two runs or node checks at once on one GPU, or the CPU, disturb each other: both are told, none is stopped.

A lock that the kernel lets go of with its process, in a file for each GPU. Whoever measures shares it, and
whoever comes touches the file. A container with a /tmp of its own sees only itself.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PLACE = Path("/tmp")  # whatever TMPDIR says: it is not the same for all who measure here
WRONG = "figures of both will be wrong"


@contextmanager
def alone(devices: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """While it measures on these: UUIDs of GPUs, or "cpu"."""
    with ExitStack() as stack:
        files = [file for name in devices if (file := _opened(PLACE / f"bench-measures-{name}")) is not None]
        for file in files:
            stack.callback(os.close, file)
        if since := [_came(file) for file in files if not _first(file)]:
            say(f"another bench measures on this machine since {_clock(min(since))}: {WRONG}")
        came = [_touch(file) for file in files]
        yield
        if later := [_came(file) for file, ours in zip(files, came, strict=True) if _came(file) != ours]:
            say(f"another bench began on this machine at {_clock(max(later))}: {WRONG}")


def _opened(path: Path) -> int | None:
    """Anybody's, for anybody. None where there can be no such file: then nobody is warned."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with suppress(FileExistsError):
            made = os.open(path, flags | os.O_CREAT | os.O_EXCL)
            os.fchmod(made, 0o666)
            return made
        file = os.open(path, flags)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def _first(file: int) -> bool:
    """Alone with it for a moment, shared from then on."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        first = False
    else:
        first = True
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return first


def _came(file: int) -> float:
    return os.fstat(file).st_mtime


def _touch(file: int) -> float:
    os.utime(file)
    return _came(file)


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_seconds))

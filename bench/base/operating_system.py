"""Functions whose implementation differs between Linux, macOS and Windows: the one place that asks which.

Functions that only run on a measured machine begin with `if sys.platform != "linux": raise ...` instead, as
type checkers understand. tests/test_operating_systems.py lets mypy check all others for each system.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from bench.base.errors import EnvironmentCannot

if sys.platform == "win32":
    import msvcrt
    import time

    # Ctrl-C, Ctrl-Break and a closed window.
    ENDS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
    BINARY = os.O_BINARY  # for os.open, which would change the ends of lines
    WITHOUT_WAITING = 0  # there are no named pipes among the files of a folder
    _LOCK_AT = 2**40  # the byte that is locked: others could not read a locked byte, and no file is so long
    _LOCK_EVERY_SECONDS = 0.05
else:
    import fcntl
    import resource

    # Ctrl-C, kill, a closed terminal.
    ENDS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    BINARY = 0
    WITHOUT_WAITING = os.O_NONBLOCK  # to open a named pipe that nobody writes to


PIPES_CAN_WAIT = sys.platform != "win32"  # whether a process can wait for data in a pipe, by select.poll
SSH_SHARES_CONNECTIONS = sys.platform != "win32"  # whether OpenSSH's client has a ControlMaster


def lock(file: IO[bytes], *, wait: bool) -> None:
    """Lock an open file until it is closed; BlockingIOError if `wait` is false and a process has the lock."""
    if sys.platform == "win32":
        while not _lock_byte(file):
            if not wait:
                raise BlockingIOError("another process has the lock")
            time.sleep(_LOCK_EVERY_SECONDS)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


if sys.platform == "win32":

    def _lock_byte(file: IO[bytes]) -> bool:
        number = file.fileno()
        position = os.lseek(number, 0, os.SEEK_CUR)
        try:
            os.lseek(number, _LOCK_AT, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            return True
        except PermissionError:
            return False
        finally:
            os.lseek(number, position, os.SEEK_SET)


def user_and_group() -> tuple[int, int] | None:
    """Return the numbers of this process's user and group; None on Windows, where users have no numbers."""
    if sys.platform == "win32":
        return None
    return os.geteuid(), os.getegid()


def give_to(path: Path, user: int) -> None:
    """Make a user, and the group of the same number, the owner of a file; do nothing on Windows."""
    if sys.platform != "win32":
        os.chown(path, user, user)


def forbid_core_dumps() -> None:
    """Let neither this process nor those that it starts leave a core dump."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def sync_folder(folder: Path) -> None:
    """Let the names in a folder survive a loss of power, where the file system can promise that."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


ELSEWHERE = "bench push MANIFEST HOST measures another machine from here"  # advice of `require_linux`


def require_linux(what: str, advice: str) -> None:
    """Refuse another operating system; `what` is the subject of the message."""
    if sys.platform != "linux":
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise EnvironmentCannot(f"{what} needs Linux, and this machine has {system}", advice=advice)

"""Linux processes as a group: ends that leave no orphan, memory of all together."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above took effect
        os._exit(1)


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become children of this process, whatever session they made."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def preferred_victim() -> None:
    """The kernel, short of memory, ends this process before the supervisor."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def children() -> list[int]:
    return [int(pid) for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()]


def end_all_children() -> None:
    """Kills and reaps every child, until none is left: each end may hand over more orphans."""
    while True:
        for pid in children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def group_bytes(group: int) -> int:
    """Resident memory of all processes of a group; what they share is counted once per process."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            if int(stat.rpartition(")")[2].split()[2]) != group:
                continue
            total += int((entry / "statm").read_text().split()[1]) - int(
                (entry / "statm").read_text().split()[2]
            )
        except (OSError, IndexError):  # it ended meanwhile
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def ended_how(status: int) -> str:
    """A wait status in words."""
    number = status & 0x7F
    return f"by {signal.Signals(number).name}" if number else f"with exit code {status >> 8}"


def ended_for_memory(status: int, kills_before: int) -> bool:
    """By the kernel, as far as can be told: by its signal, and it has killed for memory since."""
    return status & 0x7F == signal.SIGKILL and oom_kills() > kills_before


def oom_kills() -> int:
    """How often the kernel has killed for memory since it started."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0

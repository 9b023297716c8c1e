"""Manage groups of Linux processes: end them without orphans, add up what they use, say how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, in any session."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def preferred_victim() -> None:
    """Make this process the first that the kernel kills when memory runs out, before the supervisor."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def kill_group(group: int) -> None:
    """Send SIGKILL to all processes of a group; do nothing if the group has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def children() -> list[int]:
    """Return the process ids of this process's children."""
    return [int(pid) for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()]


def end_all_children() -> None:
    """Kill and reap children until no child is left; an ended child may leave its orphans to this process."""
    while True:
        for pid in children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def group_bytes(group: int) -> int:
    """Add up the resident memory of a group, without pages shared with files or other processes."""
    total = 0
    for process, _ in _members(group):
        with suppress(OSError):  # the process ended meanwhile
            _, resident, shared, *_ = map(int, (process / "statm").read_text().split())
            total += resident - shared
    return total * os.sysconf("SC_PAGE_SIZE")


def programs_ticks(group: int) -> dict[int, int]:
    """Return by process id how long the programs of a group have computed, in ticks of the kernel's clock.

    Programs are processes that execute another file than this process, such as a compiler. The time of a
    program includes that of its children that have ended.
    """
    ticks, own = {}, Path("/proc/self/exe").readlink()
    for process, stat in _members(group):
        with suppress(OSError):  # the process ended meanwhile
            if (process / "exe").readlink() != own:
                ticks[int(process.name)] = sum(map(int, stat[11:15]))
    return ticks


def any_works_in(folder: Path) -> bool:
    """Whether the working folder of any process is `folder`; of those that this user may ask."""
    wanted = folder.resolve()
    for process in _processes():
        with suppress(OSError):
            if (process / "cwd").readlink() == wanted:
                return True
    return False


def _members(group: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder in /proc of each process of a group, and the fields of its `stat` after its name."""
    for process in _processes():
        with suppress(OSError, IndexError):  # the process ended meanwhile
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            if int(stat[2]) == group:
                yield process, stat


def _processes() -> Iterator[Path]:
    """Yield the folder in /proc of each process."""
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def ended_how(status: int) -> str:
    """Describe a wait status: "by SIGKILL" or "with exit code 1"."""
    number = status & 0x7F
    return f"by {signal.Signals(number).name}" if number else f"with exit code {status >> 8}"


def ended_for_memory(status: int, kills_before: int) -> bool:
    """Whether the kernel probably killed a process for memory: SIGKILL, and the OOM count has grown."""
    return status & 0x7F == signal.SIGKILL and oom_kills() > kills_before


def oom_kills() -> int:
    """Count the out-of-memory kills since the kernel started."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

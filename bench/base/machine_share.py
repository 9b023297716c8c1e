"""The cores and the memory that this process may use, which cgroups or a scheduler may limit."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.base.sizes import bytes_text

MEMORY = ("memory.max", "memory.limit_in_bytes")  # files that hold the limit in cgroups 2 and 1
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
ALL = 0.9  # share of the memory that counts as all: schedulers reserve a little even of a whole node
DRIVER = Path("/proc/driver/nvidia/gpus")  # lists every GPU of the machine, usable by this process or not


def parts(visible_gpus: int | None) -> list[str]:
    """Describe the limits of this process, such as "8 of 64 cores"; empty if it has the whole machine."""
    limits = []
    machine = os.cpu_count() or 1
    if cores() < machine:
        limits.append(f"{cores()} of {machine} cores")
    if memory_bytes() < ALL * physical_bytes():
        limits.append(f"{bytes_text(memory_bytes())} of {bytes_text(physical_bytes())}")
    here = len(list(DRIVER.iterdir())) if DRIVER.is_dir() else 0
    if visible_gpus is not None and visible_gpus < here:
        limits.append(f"{visible_gpus} of {here} GPUs")
    return limits


def physical_bytes() -> int:
    """Return the machine's memory."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less if a cgroup limits it."""
    physical = physical_bytes()
    limits = [_numbers(folder / name) for folder in _folders("memory") for name in MEMORY]
    return min([physical, *(limit[0] for limit in limits if limit)])


def cores() -> int:
    """Count the cores of the affinity mask, or fewer if a cgroup limits the CPU time."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    shares = [time[0] / time[1] for folder in _folders("cpu") if len(time := _cpu_time(folder)) == 2]
    return min([len(os.sched_getaffinity(0)), *(math.ceil(share) for share in shares if share > 0)])


def _cpu_time(folder: Path) -> list[int]:
    """Return the quota and period of the CPU time in µs; empty if there is no limit."""
    old = [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]
    return _numbers(folder / "cpu.max") or old


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; empty if the file does not exist, or says "max" for no limit."""
    with suppress(OSError, ValueError):
        return [int(word) for word in file.read_text(encoding="utf-8").split()]
    return []


def _folders(controller: str) -> Iterator[Path]:
    """Yield the cgroups of this process from the innermost outwards; the narrowest of their limits counts."""
    with suppress(OSError):
        for line in OWN.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = GROUPS / controller if controllers else GROUPS
            own = top / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))

"""What this process may have of the machine: a container or a scheduler may give it less than all."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY = ("memory.max", "memory.limit_in_bytes")  # of cgroups 2 and 1
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


ALL = 0.9  # of the memory: a scheduler keeps a little of it from whoever has a whole node
DRIVER = Path("/proc/driver/nvidia/gpus")  # every GPU of the machine, whoever may use it


def parts(visible_gpus: int | None) -> list[str]:
    """What is ours of the machine, where that is not all: of cores, memory and GPUs."""
    told = []
    machine = os.cpu_count() or 1
    if cores() < machine:
        told.append(f"{cores()} of {machine} cores")
    if memory_bytes() < ALL * physical_bytes():
        told.append(f"{memory_bytes() / 2**30:.0f} of {physical_bytes() / 2**30:.0f} GiB")
    here = len(list(DRIVER.iterdir())) if DRIVER.is_dir() else 0
    if visible_gpus is not None and visible_gpus < here:
        told.append(f"{visible_gpus} of {here} GPUs")
    return told


def physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes() -> int:
    physical = physical_bytes()
    limits = [_numbers(folder / name) for folder in _folders("memory") for name in MEMORY]
    return min([physical, *(limit[0] for limit in limits if limit)])


def cores() -> int:
    """Those that it may be put on, or fewer where it may use them for a part of the time alone."""
    shares = [time[0] / time[1] for folder in _folders("cpu") if len(time := _cpu_time(folder)) == 2]
    return min([len(os.sched_getaffinity(0)), *(math.ceil(share) for share in shares if share > 0)])


def _cpu_time(folder: Path) -> list[int]:
    """How long of which period, in µs; nothing where there is no limit."""
    old = [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]
    return _numbers(folder / "cpu.max") or old


def _numbers(file: Path) -> list[int]:
    """None where there is no such file, or no limit, which is written "max"."""
    with suppress(OSError, ValueError):
        return [int(word) for word in file.read_text().split()]
    return []


def _folders(controller: str) -> Iterator[Path]:
    """From our own group to the outermost that is seen here: the narrowest limit of all counts."""
    with suppress(OSError):
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = GROUPS / controller if controllers else GROUPS
            own = top / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))

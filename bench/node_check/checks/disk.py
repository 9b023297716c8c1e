"""Can the scratch disk take checkpoints and give data? Written through to the disk, read past the cache."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, quantity
from bench.node_check.judging.standards import Standards

BLOCK_BYTES = 8 << 20
BYTES = {"quick": 1 << 30, "standard": 4 << 30, "soak": 8 << 30}
TINY_BYTES = 16 << 20
FREE_FAIL, FREE_WARN = 5 * 2**30, 50 * 2**30
SLOW = 100e6  # B/s: a checkpoint of a small model would take a minute


def measure(rig: Rig, effort: CheckBudget) -> Mapping[str, Any]:
    free = shutil.disk_usage(effort.scratch).free
    size = TINY_BYTES if effort.tiny else BYTES[effort.level]
    size = min(size, free // 4 // BLOCK_BYTES * BLOCK_BYTES)
    if size < BLOCK_BYTES:
        return {"free_bytes": free}
    block = mmap.mmap(-1, BLOCK_BYTES)  # aligned to pages, as O_DIRECT wants it
    block.write(os.urandom(BLOCK_BYTES))
    with tempfile.NamedTemporaryFile(dir=effort.scratch, prefix="bench-disk-") as file:
        written, wrote = _through(file.name, size, block, effort, writing=True)
        read, reading = _through(file.name, written, block, effort, writing=False)
    return {
        "free_bytes": free, "written_bytes": written, "write_seconds": wrote,
        "read_bytes": read, "read_seconds": reading,
    }  # fmt: skip


def _through(
    path: str, size: int, block: mmap.mmap, effort: CheckBudget, *, writing: bool
) -> tuple[int, float]:
    """Past the page cache where the file system can, for at most four times a figure's time."""
    flags = os.O_WRONLY if writing else os.O_RDONLY
    try:
        fd = os.open(path, flags | os.O_DIRECT)
    except OSError:  # tmpfs, overlayfs
        fd = os.open(path, flags)
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        started = time.perf_counter()
        done = 0
        while done < size and time.perf_counter() - started < 4 * effort.seconds:
            moved = os.write(fd, block) if writing else os.readv(fd, [block])
            if moved == 0:
                break
            done += moved
        if writing:
            os.fsync(fd)
        return done, time.perf_counter() - started
    finally:
        os.close(fd)


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    data = evidence.data("disk")
    if data is None:
        return
    free = data["free_bytes"]
    verdict = "fail" if free < FREE_FAIL else "warn" if free < FREE_WARN else "pass"
    yield Finding(
        "disk",
        "free space",
        verdict,  # type: ignore[arg-type]
        f"{free / 2**30:.0f} GiB",
        f"at least {FREE_WARN / 2**30:.0f} GiB",
        "rule",
        "bench: an image and some checkpoints",
        "make room, or name another scratch with --scratch" if verdict != "pass" else "",
    )
    wanted = standards.expect.disk_gb_per_second
    for what in ("write", "read"):
        size = data.get("written_bytes" if what == "write" else "read_bytes")
        if not size:
            continue
        rate = size / data[f"{what}_seconds"]
        least = wanted * 1e9 if wanted else SLOW
        slow = rate < least
        yield Finding(
            "disk", what, ("fail" if wanted else "warn") if slow else "pass", quantity(rate, "B/s"),
            f"at least {quantity(least, 'B/s')}", "rule", "the manifest" if wanted else "bench",
            "another disk is at work, or this one is a network's: name a local scratch" if slow else "",
            None, None, rate, least, "B/s",
        )  # fmt: skip


CHECK = Check(
    "disk", "is there room, and is the scratch disk fast?", judge, measure, limit_seconds=90, blames="node"
)

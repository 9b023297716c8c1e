"""Measure the scratch disk: free space, and the rates of writing and reading past the page cache."""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.standards import Standards

BLOCK_BYTES = 8 << 20
BYTES = {"quick": 1 << 30, "standard": 4 << 30, "soak": 8 << 30}
TINY_BYTES = 16 << 20
FREE_FAIL, FREE_WARN = 5 * 2**30, 50 * 2**30
SLOW = 100e6  # B/s: a checkpoint of a small model would take a minute


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    free = shutil.disk_usage(budget.scratch).free
    size = TINY_BYTES if budget.tiny else BYTES[budget.depth]
    size = min(size, free // 4 // BLOCK_BYTES * BLOCK_BYTES)
    if size < BLOCK_BYTES:
        return {"free_bytes": free}
    block = mmap.mmap(-1, BLOCK_BYTES)  # aligned to pages, as O_DIRECT requires
    block.write(os.urandom(BLOCK_BYTES))
    with tempfile.NamedTemporaryFile(dir=budget.scratch, prefix="bench-disk-") as file:
        written, write_seconds = _transfer(file.name, size, block, budget, writing=True)
        read, read_seconds = _transfer(file.name, written, block, budget, writing=False)
    return {
        "free_bytes": free,
        "written_bytes": written,
        "write_seconds": write_seconds,
        "read_bytes": read,
        "read_seconds": read_seconds,
    }


def _transfer(
    path: str, size: int, block: mmap.mmap, budget: CheckBudget, *, writing: bool
) -> tuple[int, float]:
    """Write or read up to `size` bytes; return the bytes and the seconds.

    Bypasses the page cache where the file system can, and stops after four times a figure's time.
    """
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
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
        while done < size and time.perf_counter() - started < 4 * budget.seconds:
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
    yield Question("disk", "free space").judged(
        verdict_of(fail=free < FREE_FAIL, warn=free < FREE_WARN),
        f"{free / 2**30:.0f} GiB",
        expected=f"at least {FREE_WARN / 2**30:.0f} GiB",
        source="bench: an image and some checkpoints",
        advice="make room, or name another scratch with --scratch",
    )
    expected = standards.expect.disk_gb_per_second
    least = expected * 1e9 if expected else SLOW
    for what, moved in (("write", "written_bytes"), ("read", "read_bytes")):
        size = data.get(moved)
        if not size:
            continue
        rate = size / data[f"{what}_seconds"]
        yield Question("disk", what, unit="B/s").judged(
            verdict_of(fail=expected and rate < least, warn=rate < least),
            quantity(rate, "B/s"),
            expected=f"at least {quantity(least, 'B/s')}",
            source="the manifest" if expected else "bench",
            advice="something else uses this disk, or it is a network disk: name a local one with --scratch",
            value=rate,
            reference=least,
        )


CHECK = Check(
    "disk",
    "is there room, and is the scratch disk fast?",
    judge,
    measure,
    torch=False,
    limit_seconds=90,
    blames="node",
)

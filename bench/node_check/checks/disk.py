"""Measure the scratch disk: free space, and the rates of writing and reading past the page cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.file_systems import by_python, nameless_file
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, memory, quantity, verdict_of
from bench.node_check.judging.standards import Standards

BLOCK_BYTES = 8 << 20
BYTES = {"quick": 1 << 30, "standard": 4 << 30, "soak": 8 << 30}
TINY_BYTES = 16 << 20
FREE_FAIL, FREE_WARN = 5 * 2**30, 50 * 2**30
SLOW = 100e6  # B/s: a checkpoint of a small model would take a minute


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Write a file past the page cache and read it again, unless too little is free for a single block."""
    free = shutil.disk_usage(budget.scratch).free
    size = TINY_BYTES if budget.tiny else BYTES[budget.depth]
    size = min(size, free // 4 // BLOCK_BYTES * BLOCK_BYTES)
    if size < BLOCK_BYTES:
        return {"free_bytes": free}
    descriptor = nameless_file(budget.scratch)
    try:
        write, read = by_python(descriptor, size, budget.seconds, ("write", "read"), BLOCK_BYTES)
    finally:
        os.close(descriptor)
    return {
        "free_bytes": free,
        "written_bytes": write.moved_bytes,
        "write_seconds": write.seconds,
        "read_bytes": read.moved_bytes,
        "read_seconds": read.seconds,
    }


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge free space by FREE_FAIL and FREE_WARN, and rates by the owner's expectation or by SLOW."""
    data = evidence.data("disk")
    if data is None:
        return
    free = data["free_bytes"]
    yield Question("disk", "free space").judged(
        verdict_of(fail=free < FREE_FAIL, warn=free < FREE_WARN),
        memory(free),
        expected=f"at least {memory(FREE_WARN)}",
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

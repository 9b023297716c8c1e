"""Xid errors: what the driver reported of a GPU, during the check through NVML, before it in the kernel log.

The events need no root. The kernel's log may: where it is closed, this says so, and what root would add.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from bench.acceptance.evidence import BEFORE, Evidence
from bench.acceptance.finding import Finding, Verdict
from bench.acceptance.standards import Standards
from bench.checks import Check, Effort, Rig, not_read

SOURCE = "NVIDIA: Xid errors"
# A program's own fault, and no word about the hardware: NVIDIA's catalogue calls these application errors.
OF_PROGRAMS = {13, 31, 43, 45, 68, 69}
WORDS = {
    48: "double-bit ECC error", 63: "row remapping recorded", 64: "row remapping failed", 74: "NVLink error",
    79: "fallen off the bus", 92: "many single-bit errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "GSP does not answer", 120: "GSP error", 140: "unrecovered ECC error",
}  # fmt: skip
NOTED = {63, 92, 94}  # memory that was repaired: to be seen, not yet to be refused
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")
_MOST_LINES = 200


def measure(rig: Rig, effort: Effort) -> Mapping[str, Any]:
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"closed": f"/dev/kmsg: {error.strerror}"}
    lines = []
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the oldest records went while we read
                continue
            if b"NVRM: Xid" in record:
                lines.append(record.decode(errors="replace").partition(";")[2].splitlines()[0])
    except OSError as error:
        return {"closed": f"/dev/kmsg: {error.strerror}"}
    finally:
        with suppress(OSError):
            os.close(fd)
    return {"lines": lines[-_MOST_LINES:]}


def parse(line: str) -> tuple[str, int, str] | None:
    """The GPU's bus id, the number and the rest of a line of the kernel's log."""
    match = _LINE.search(line)
    return (match[1], int(match[2]), match[3]) if match else None


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    inventory = list(evidence.alive(BEFORE).values())
    log = evidence.data("xid")
    by_bus = {_bus(str((g.get("PciInfo") or {}).get("busId", ""))): g.index for g in inventory}
    past: dict[int | None, list[int]] = {}
    for line in (log or {}).get("lines", ()):
        if (found := parse(line)) is not None:
            past.setdefault(by_bus.get(_bus(found[0])), []).append(found[1])
    for gpu in evidence.gpus:
        looks = [s.gpus[gpu.index].xids for s in evidence.course if gpu.index < len(s.gpus)]
        told = [xids for xids in looks if xids is not None]
        if told:
            yield _finding(gpu.index, [x for xids in told for x in xids], "while it was checked")
        elif looks:
            yield not_read(
                "xid", f"the driver reports no Xid events of GPU {gpu.index}", counts=False, gpu=gpu.index
            )
        else:
            yield not_read("xid", f"nobody watched GPU {gpu.index} for Xid events", gpu=gpu.index)
        if past.get(gpu.index):
            yield _finding(gpu.index, past[gpu.index], "since boot, in the kernel's log")
    if log is None or "closed" in log:
        why = log["closed"] if log else "it was not read"
        yield not_read(
            "xid", f"the kernel's log is closed ({why}): earlier Xids are not known", counts=False,
            advice="root adds it, or kernel.dmesg_restrict=0",
        )  # fmt: skip
    elif inventory and not past:
        yield Finding("xid", "kernel log", "pass", "no Xid since boot", "none", "rule", SOURCE)


def _bus(text: str) -> str:
    """0000:1B:00 and 00000000:1b:00.0 are one place."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) > 1 else text


def _finding(index: int, xids: list[int], when: str) -> Finding:
    hard = [x for x in xids if x not in OF_PROGRAMS]
    grave = [x for x in hard if x not in NOTED]
    verdict: Verdict = "fail" if grave else "warn" if hard else "pass"
    texts = [f"{x} ({WORDS[x]})" if x in WORDS else str(x) for x in dict.fromkeys(hard)]
    mild = f"{len(xids) - len(hard)} of programs' own" if len(xids) > len(hard) else ""
    found = f"Xid {', '.join(texts)} {when}" if texts else f"none of the hardware {when}"
    return Finding(
        "xid",
        f"GPU {index}",
        verdict,
        f"{found}; {mild}" if mild else found,
        "no Xid of the hardware",
        "rule",
        SOURCE,
        "look the number up in NVIDIA's Xid catalogue; drain the node" if hard else "",
        index,
    )


CHECK = Check("xid", "has the driver reported errors?", judge, measure, limit_seconds=15, about_gpus=True)

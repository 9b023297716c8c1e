"""Xid errors: what the driver reported of a GPU, during the check through NVML, before it in the kernel log.

The events need no root. The kernel's log may: where it is closed, this says so, and what root would add.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig, not_read
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Verdict
from bench.node_check.judging.standards import Standards

SOURCE = "NVIDIA: Xid errors"
IN_LOG = "since boot, in the kernel's log"
# A program's own fault, and no word about the hardware: NVIDIA's catalogue calls these application errors.
OF_PROGRAMS = {13, 31, 43, 45, 68, 69}
WORDS = {
    48: "double-bit ECC error", 63: "row remapping recorded", 64: "row remapping failed", 74: "NVLink error",
    79: "fallen off the bus", 92: "many single-bit errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "GSP does not answer", 120: "GSP error", 140: "unrecovered ECC error",
}  # fmt: skip
NOTED = {63, 92, 94}  # memory that was repaired: to be seen, not yet to be refused
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")
_OF_A_SWITCH = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)")
_MOST_LINES = 20  # of one number of one GPU: a program that crashes again and again hides nothing else


def measure(rig: Rig, effort: CheckBudget) -> Mapping[str, Any]:
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"closed": f"/dev/kmsg: {error.strerror}"}
    records = []
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the oldest records went while we read
                continue
            if b"Xid (" in record:
                records.append(record.decode(errors="replace"))
    except OSError as error:
        return {"closed": f"/dev/kmsg: {error.strerror}"}
    finally:
        with suppress(OSError):
            os.close(fd)
    return {"lines": lines_of(records)}


def lines_of(records: Iterable[str]) -> list[str]:
    """The lines that are Xids, of /dev/kmsg's records; of very many alike the newest."""
    kept: dict[tuple[str, ...], deque[tuple[int, str]]] = {}
    for number, record in enumerate(records):
        line = record.partition(";")[2].partition("\n")[0]
        if match := _LINE.search(line) or _OF_A_SWITCH.search(line):
            kept.setdefault(match.groups()[:2], deque(maxlen=_MOST_LINES)).append((number, line))
    return [line for _, line in sorted(entry for entries in kept.values() for entry in entries)]


def parse(line: str) -> tuple[str, int, str] | None:
    """The GPU's bus id, the number and the rest of a line of the kernel's log."""
    match = _LINE.search(line)
    return (match[1], int(match[2]), match[3]) if match else None


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    inventory = list(evidence.alive(BEFORE).values())
    log = evidence.data("xid")
    lines = list((log or {}).get("lines", ()))
    past: dict[str, list[int]] = {}  # by the GPU's place on the bus
    for line in lines:
        if (found := parse(line)) is not None:
            past.setdefault(_bus(found[0]), []).append(found[1])
    places = {g.index: _place(g) for g in inventory}
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
        if earlier := past.get(places.get(gpu.index, "")):
            yield _finding(gpu.index, earlier, IN_LOG)
    yield from _elsewhere(past, evidence)
    yield from _switches(lines)
    if log is None or "closed" in log:
        why = log["closed"] if log else "it was not read"
        yield not_read(
            "xid", f"the kernel's log is closed ({why}): earlier Xids are not known", counts=False,
            advice="root adds it, or kernel.dmesg_restrict=0",
        )  # fmt: skip
    elif inventory and not lines:
        yield Finding("xid", "kernel log", "pass", "no Xid since boot", "none", "rule", SOURCE)


def _elsewhere(past: Mapping[str, list[int]], evidence: Evidence) -> Iterator[Finding]:
    """Of a place where no GPU answers: one that is lost does not say where it is, one that is gone is not
    even counted. Those that were left out on purpose are known, unless they may not be asked."""
    everyone = [Answers(i, raw) for i, raw in enumerate((evidence.data(BEFORE) or {}).get("gpus", ()))]
    if any(gpu.forbidden for gpu in everyone):
        return
    known = {_place(gpu) for gpu in everyone}
    for place in past:
        if place not in known:
            yield _finding(None, past[place], IN_LOG, f"{place}, where no GPU answers")


def _switches(lines: Iterable[str]) -> Iterator[Finding]:
    """SXids, of the NVSwitches between the GPUs: their driver says itself which are fatal."""
    seen: dict[str, dict[str, str]] = {}
    for match in filter(None, map(_OF_A_SWITCH.search, lines)):
        seen.setdefault(_bus(match[1]), {})[match[2]] = match[3].lower()
    for place, found in seen.items():
        yield Finding(
            "xid", f"NVSwitch {place}", "fail" if "fatal" in found.values() else "warn",
            f"SXid {', '.join(f'{number} ({kind})' for number, kind in found.items())} {IN_LOG}",
            "no SXid of the switches", "rule", "NVIDIA Fabric Manager User Guide: NVSwitch SXid errors",
            "look the number up in NVIDIA's Fabric Manager guide; drain the node if it is fatal",
        )  # fmt: skip


def _place(gpu: Answers) -> str:
    return _bus(str((gpu.get("PciInfo") or {}).get("busId", "")))


def _bus(text: str) -> str:
    """0000:1B:00 and 00000000:1b:00.0 are one place."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) > 1 else text


def _finding(index: int | None, xids: list[int], when: str, subject: str | None = None) -> Finding:
    hard = [x for x in xids if x not in OF_PROGRAMS]
    grave = [x for x in hard if x not in NOTED]
    verdict: Verdict = "fail" if grave else "warn" if hard else "pass"
    texts = [f"{x} ({WORDS[x]})" if x in WORDS else str(x) for x in dict.fromkeys(hard)]
    mild = f"{len(xids) - len(hard)} of programs' own" if len(xids) > len(hard) else ""
    found = f"Xid {', '.join(texts)} {when}" if texts else f"none of the hardware {when}"
    return Finding(
        "xid",
        subject or f"GPU {index}",
        verdict,
        f"{found}; {mild}" if mild else found,
        "no Xid of the hardware",
        "rule",
        SOURCE,
        "look the number up in NVIDIA's Xid catalogue; drain the node" if hard else "",
        index,
    )


CHECK = Check("xid", "has the driver reported errors?", judge, measure, limit_seconds=15, about_gpus=True)

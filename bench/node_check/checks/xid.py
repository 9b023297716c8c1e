"""Check for Xid errors of the driver: during the check by NVML's events, before it from the kernel's log.

The events need no root. The kernel's log may need root; then the finding says that earlier Xids are unknown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bench.base.kernel_log import kernel_messages, why_closed
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

SOURCE = "NVIDIA: Xid errors"
IN_LOG = "since boot, in the kernel's log"
# Errors of programs, not of the hardware: NVIDIA's catalogue calls these application errors.
OF_PROGRAMS = {13, 31, 43, 45, 68, 69}
WORDS = {
    48: "double-bit ECC error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many single-bit errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
NOTED = {63, 92, 94}  # repaired memory errors: a warning, not a failure
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")
_OF_A_SWITCH = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)")
# Lines kept of each Xid of each GPU: a program that crashes repeatedly must not crowd out other Xids.
_MOST_LINES = 20


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the kernel's lines with Xids, or why its log is closed to this user."""
    try:
        return {"lines": lines_of(kernel_messages((b"Xid (",)))}
    except (OSError, EOFError) as error:
        return {"closed": why_closed(error)}


def lines_of(messages: Iterable[str]) -> list[str]:
    """Select the Xid lines from messages of the kernel: the newest 20 of each Xid of each GPU."""
    kept: dict[tuple[str, ...], deque[tuple[int, str]]] = {}
    for number, line in enumerate(messages):
        if match := _LINE.search(line) or _OF_A_SWITCH.search(line):
            kept.setdefault(match.groups()[:2], deque(maxlen=_MOST_LINES)).append((number, line))
    return [line for _, line in sorted(entry for entries in kept.values() for entry in entries)]


class LoggedXid(NamedTuple):
    """An Xid in a line of the kernel's log."""

    bus: str  # id of the GPU's place
    number: int
    words: str  # the rest of the line


def parse(line: str) -> LoggedXid | None:
    """Read a line of the kernel's log; None if it is not about an Xid."""
    match = _LINE.search(line)
    return LoggedXid(match[1], int(match[2]), match[3]) if match else None


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail hardware Xids, warn of repaired memory errors; errors of programs pass, and are counted."""
    inventory = list(evidence.alive(BEFORE).values())
    log = evidence.data("xid")
    lines = list((log or {}).get("lines", ()))
    logged: dict[str, list[int]] = {}  # Xids by the GPU's place on the bus
    for line in lines:
        if (parsed := parse(line)) is not None:
            logged.setdefault(_bus(parsed.bus), []).append(parsed.number)
    places = {g.index: _place(g) for g in inventory}
    for gpu in evidence.gpus:
        yield _events(gpu.index, evidence)
        if earlier := logged.get(places.get(gpu.index, "")):
            yield _finding(Question.of_gpu("xid", gpu.index), earlier, IN_LOG)
    yield from _elsewhere(logged, evidence)
    yield from _switches(lines)
    if log is None or "closed" in log:
        why = log["closed"] if log else "it was not read"
        yield Question("xid").unread(
            f"the kernel's log is closed ({why}): earlier Xids are not known",
            counts=False,
            advice="run as root, or set kernel.dmesg_restrict=0",
        )
    elif inventory and not lines:
        yield Question("xid", "kernel log").judged(
            "pass", "no Xid since boot", expected="none", source=SOURCE
        )


def _events(index: int, evidence: Evidence) -> Finding:
    """Judge the Xid events that NVML reported of one GPU while the node was checked."""
    question = Question.of_gpu("xid", index)
    samples = [sample.gpus[index].xids for sample in evidence.course if index < len(sample.gpus)]
    reported = [xids for xids in samples if xids is not None]
    if reported:
        return _finding(question, [xid for xids in reported for xid in xids], "while it was checked")
    if samples:
        return question.unread(f"the driver reports no Xid events of GPU {index}", counts=False)
    return question.unread(f"GPU {index} was not watched for Xid events")


def _elsewhere(logged: Mapping[str, list[int]], evidence: Evidence) -> Iterator[Finding]:
    """Report Xids at places on the bus where no GPU answers.

    A lost GPU does not report its place, and a GPU that fell off the bus is no longer counted. The places of
    GPUs that were left out on purpose are known, unless this process may not query them: then nothing is
    reported.
    """
    everyone = [Answers(i, raw) for i, raw in enumerate((evidence.data(BEFORE) or {}).get("gpus", ()))]
    if any(gpu.forbidden for gpu in everyone):
        return
    places = {_place(gpu) for gpu in everyone}
    for place, xids in logged.items():
        if place not in places:
            yield _finding(Question("xid", f"{place}, where no GPU answers"), xids, IN_LOG)


def _switches(lines: Iterable[str]) -> Iterator[Finding]:
    """Report SXids, the errors of NVSwitches; their driver logs which of them are fatal."""
    errors: dict[str, dict[str, str]] = {}
    for match in filter(None, map(_OF_A_SWITCH.search, lines)):
        errors.setdefault(_bus(match[1]), {})[match[2]] = match[3].lower()
    for place, kinds in errors.items():
        yield Question("xid", f"NVSwitch {place}").judged(
            verdict_of(fail="fatal" in kinds.values(), warn=True),
            f"SXid {', '.join(f'{number} ({kind})' for number, kind in kinds.items())} {IN_LOG}",
            expected="no SXid of the switches",
            source="NVIDIA Fabric Manager User Guide: NVSwitch SXid errors",
            advice="look the number up in NVIDIA's Fabric Manager guide; drain the node if it is fatal",
        )


def _place(gpu: Answers) -> str:
    return _bus(str((gpu.get("PciInfo") or {}).get("busId", "")))


def _bus(text: str) -> str:
    """Normalise a bus id: 0000:1B:00 and 00000000:1b:00.0 are one place."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) > 1 else text


def _finding(question: Question, xids: list[int], when: str) -> Finding:
    hard = [x for x in xids if x not in OF_PROGRAMS]
    texts = [f"{x} ({WORDS[x]})" if x in WORDS else str(x) for x in dict.fromkeys(hard)]
    found = f"Xid {', '.join(texts)} {when}" if texts else f"no hardware Xid {when}"
    if len(xids) > len(hard):
        found += f"; {len(xids) - len(hard)} caused by programs"
    return question.judged(
        verdict_of(fail=[x for x in hard if x not in NOTED], warn=hard),
        found,
        expected="no hardware Xid",
        source=SOURCE,
        advice="look the number up in NVIDIA's Xid catalogue; drain the node",
    )


CHECK = Check(
    "xid",
    "has the driver reported errors?",
    judge,
    measure,
    torch=False,
    limit_seconds=15,
    about_gpus=True,
    passive=True,
)

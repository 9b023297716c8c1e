"""Check that the node's clock is synchronised: else logs of nodes do not align and certificates fail."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

STA_UNSYNC, TIME_ERROR = 0x40, 5
MOST_SECONDS = 0.5


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), on 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance")),
        ("rest", ctypes.c_char * 256),
    )


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Read the kernel's clock state by adjtimex(2) without setting anything, which needs no root."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = _Timex()
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        return {"error": ctypes.get_errno()}
    return {
        "state": state,
        "status": timex.status,
        "max_error_seconds": timex.maxerror / 1e6,
        "estimated_error_seconds": timex.esterror / 1e6,
        "virtual": bool(
            re.search("^flags.* hypervisor", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        ),
    }


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Warn of a clock that is free or off by MOST_SECONDS; in a virtual machine it may be unknown."""
    data = evidence.data("clock")
    if data is None:
        return
    question = Question("clock")
    if "error" in data:
        yield question.judged(
            "not-run",
            f"the kernel does not report the clock's state (errno {data['error']})",
            expected="an answer",
            source="adjtimex(2)",
            advice="some containers forbid it",
            counts=False,
        )
        return
    free = bool(data["status"] & STA_UNSYNC) or data["state"] == TIME_ERROR
    far = data["max_error_seconds"] > MOST_SECONDS
    # The host may keep a virtual machine's clock, which the kernel inside does not see: in a virtual machine
    # a warning could be false, so the state is reported as not known.
    unknown = free and data["virtual"]
    found = f"synchronised, off by at most {data['max_error_seconds']:.3g} s"
    if free:
        found = "not synchronised as far as the kernel knows"
    if unknown:
        found += "; in a virtual machine the host may keep the time"
    yield question.judged(
        "not-run" if unknown else verdict_of(fail=False, warn=free or far),
        found,
        expected=f"synchronised, off by at most {MOST_SECONDS:g} s",
        source="adjtimex(2)",
        advice="start chrony or systemd-timesyncd, on the host if this is a container or a virtual machine",
        counts=not unknown,
    )


CHECK = Check(
    "clock",
    "is the clock synchronised?",
    judge,
    measure,
    torch=False,
    limit_seconds=10,
    blames="node",
    passive=True,
)

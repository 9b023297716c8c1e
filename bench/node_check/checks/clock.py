"""Is the node's clock kept by something? Without it logs of several nodes, and certificates, go wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

STA_UNSYNC, TIME_ERROR = 0x40, 5
MOST_SECONDS = 0.5


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), on 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
        ("constant", ctypes.c_long), ("precision", ctypes.c_long), ("tolerance", ctypes.c_long),
        ("rest", ctypes.c_char * 256),
    )  # fmt: skip


def measure(rig: Rig, effort: CheckBudget) -> Mapping[str, Any]:
    """The kernel's own word, which needs no program and no root: adjtimex with nothing to set."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = _Timex()
    state = libc.adjtimex(ctypes.byref(found))
    if state < 0:
        return {"error": ctypes.get_errno()}
    return {
        "state": state, "status": found.status, "max_error_seconds": found.maxerror / 1e6,
        "estimated_error_seconds": found.esterror / 1e6, "virtual": _virtual(),
    }  # fmt: skip


def _virtual() -> bool:
    return any(
        line.startswith("flags") and " hypervisor" in line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
    )


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    data = evidence.data("clock")
    if data is None:
        return
    advice = "start chrony or systemd-timesyncd, on the host if this is a container or a virtual machine"
    if "error" in data:
        yield Finding(
            "clock", "the node", "not-run", f"the kernel does not say (errno {data['error']})", "an answer",
            "rule", "adjtimex(2)", "some containers forbid it", counts=False,
        )  # fmt: skip
        return
    free = bool(data["status"] & STA_UNSYNC) or data["state"] == TIME_ERROR
    far = data["max_error_seconds"] > MOST_SECONDS
    # A virtual machine's clock may be kept by its host, which the kernel inside does not see: a warning
    # may be a false one there, and that it is not known must be seen all the same.
    unknown = free and data["virtual"]
    yield Finding(
        "clock",
        "the node",
        "not-run" if unknown else "warn" if free or far else "pass",
        "nothing that its kernel knows of keeps it"
        + (": in a virtual machine the host may" if unknown else "")
        if free
        else f"kept, wrong by at most {data['max_error_seconds']:.3g} s",
        f"kept, wrong by at most {MOST_SECONDS:g} s",
        "rule",
        "adjtimex(2)",
        advice if free or far else "",
        counts=not unknown,
    )


CHECK = Check("clock", "is the clock kept?", judge, measure, limit_seconds=10, blames="node")

"""The fabric of NVSwitches: has fabric manager brought it up, and does it call itself healthy?"""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.checks.nvlink import SWITCH
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
# Two bits each of the health mask, of which 1 says that it is so: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*.
HEALTH = {0: "degraded bandwidth", 2: "route recovery", 4: "unhealthy route", 6: "access timeout recovery"}
ADVICE = "systemctl status nvidia-fabricmanager on the host (root), of the driver's very version"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    gpus = list(evidence.alive(BEFORE).values())
    switched = [g for g in gpus if _is_switched(g)]
    if not switched:
        if gpus:
            yield not_read("fabric", "no NVSwitch: there is no fabric", counts=False)
        return
    for gpu in switched:
        info = gpu.get("FabricInfo")
        if info is None or info.get("state") == 0:
            why = gpu.why("FabricInfo") if info is None else "not supported"
            yield from _without_word(gpu, why)
            continue
        yield _state(gpu, info)


def _is_switched(gpu: Answers) -> bool:
    """By what is at the other end of its links; or, until the fabric is up and links say so, by its word."""
    info = gpu.get("FabricInfo")
    return gpu.number("NvLinkRemoteDeviceType.0") == SWITCH or bool(info and info.get("state"))


def _without_word(gpu: Answers, why: str) -> Iterator[Finding]:
    """Older cards and drivers say nothing of it; peers that reach each other show that it is up."""
    states = [gpu.number(name) for name in gpu.raw if name.startswith("P2PStatus.") and name.endswith(".0")]
    reached = [state == 0 for state in states if state is not None]  # of one that is lost nothing is said
    if reached:
        good = all(reached)
        yield Finding(
            "fabric", gpu.where, "pass" if good else "fail",
            f"it does not speak of the fabric ({why}); "
            + ("all peers are reachable" if good else "some peers are not reachable"),
            "every peer reachable", "rule", "NVML: nvmlDeviceGetP2PStatus", "" if good else ADVICE, gpu.index,
        )  # fmt: skip
    else:
        yield not_read(
            "fabric", f"{gpu.where} does not speak of the fabric: {why}", counts=False, gpu=gpu.index
        )


def _state(gpu: Answers, info: dict[str, int]) -> Finding:
    state, status, mask = info["state"], info.get("status", 0), info.get("healthMask", 0)
    faults = [words for shift, words in HEALTH.items() if mask >> shift & 0b11 == 1]
    if state != 3:
        faults.insert(0, f"the fabric is {STATES.get(state, state)}")
    elif status != 0:
        faults.insert(0, f"it came up with error {status}")
    return Finding(
        "fabric",
        gpu.where,
        "fail" if faults else "pass",
        ", ".join(faults) or "completed, healthy",
        "completed, healthy",
        "rule",
        "NVML: nvmlDeviceGetGpuFabricInfoV",
        ADVICE if faults else "",
        gpu.index,
    )


CHECK = Check("fabric", "is the NVSwitch fabric up?", judge, blames="node")

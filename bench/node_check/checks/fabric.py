"""Check that fabric manager has brought up the NVSwitch fabric and that it reports no error. From NVML."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check
from bench.node_check.checks.nvlink import SWITCH
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
# Shift of each two-bit field in the health mask; 1 means true: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*.
HEALTH = {0: "degraded bandwidth", 2: "route recovery", 4: "unhealthy route", 6: "access timeout recovery"}
ADVICE = "systemctl status nvidia-fabricmanager on the host (root), of the driver's very version"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail a GPU whose fabric is not up and healthy; machines without NVSwitches have no fabric to judge."""
    gpus = list(evidence.alive(BEFORE).values())
    switched = [g for g in gpus if _is_switched(g)]
    if not switched:
        if gpus:
            yield Question("fabric").unread("no NVSwitch: there is no fabric", counts=False)
        return
    for gpu in switched:
        info = gpu.get("FabricInfo")
        if info is None or info.get("state") == 0:
            yield _by_peers(gpu, gpu.why("FabricInfo") if info is None else "not supported")
        else:
            yield _state(gpu, info)


def _is_switched(gpu: Answers) -> bool:
    """Whether the GPU's links end at a switch or, while they are still down, NVML knows of a fabric."""
    info = gpu.get("FabricInfo")
    return gpu.number("NvLinkRemoteDeviceType.0") == SWITCH or bool(info and info.get("state"))


def _by_peers(gpu: Answers, why: str) -> Finding:
    """Judge a GPU by its peers if its driver does not report the fabric's state, which older ones do not."""
    question = Question.of_gpu("fabric", gpu.index)
    names = (name for name in gpu.raw if name.startswith("P2PStatus.") and name.endswith(".0"))
    states = [state for name in names if (state := gpu.number(name)) is not None]  # a lost peer has no state
    if not states:
        return question.unread(f"{gpu.where} does not report the fabric's state: {why}", counts=False)
    good = all(state == 0 for state in states)
    reach = "all peers are reachable" if good else "some peers are not reachable"
    return question.judged(
        verdict_of(fail=not good),
        f"it does not report the fabric's state ({why}); {reach}",
        expected="every peer reachable",
        source="NVML: nvmlDeviceGetP2PStatus",
        advice=ADVICE,
    )


def _state(gpu: Answers, info: dict[str, int]) -> Finding:
    state, status, mask = info["state"], info.get("status", 0), info.get("healthMask", 0)
    faults = [words for shift, words in HEALTH.items() if mask >> shift & 0b11 == 1]
    if state != 3:
        faults.insert(0, f"the fabric is {STATES.get(state, state)}")
    elif status != 0:
        faults.insert(0, f"it came up with error {status}")
    return Question.of_gpu("fabric", gpu.index).judged(
        verdict_of(fail=faults),
        ", ".join(faults) or "completed, healthy",
        expected="completed, healthy",
        source="NVML: nvmlDeviceGetGpuFabricInfoV",
        advice=ADVICE,
    )


CHECK = Check("fabric", "is the NVSwitch fabric up?", judge, blames="node", passive=True)

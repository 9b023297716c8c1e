"""Are the GPUs there, all of them, and do they answer from the first look to the last?"""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import AFTER, BEFORE, Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

RECOVERY = {
    1: "a reset of the GPU", 2: "a reboot of the node", 3: "to be drained of peer traffic",
    4: "to be drained and reset", 5: "recovery of its IMEX domain", 6: "a reset of its bus",
    7: "a reboot of the system",
}  # fmt: skip
GONE_ADVICE = "look at the kernel log for Xid 79 (fallen off the bus); reboot; if it goes again, return it"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    before = evidence.readings.get(BEFORE)
    if before is None or before.reason is not None:
        reason = before.reason if before and before.reason else "NVML was not asked"
        yield not_read(
            "present", reason, advice="is the driver loaded, and are the devices visible here? nvidia-smi"
        )
        return
    gpus = evidence.inventory(BEFORE)
    yield _count(len(before.data["gpus"]), evidence, standards)
    for name in before.data.get("not_here", ()):
        yield Finding(
            "present", f"GPU {name}", "fail", "CUDA_VISIBLE_DEVICES names it, and it is not here",
            "every GPU that is named", "rule", "bench",
            "name those that nvidia-smi -L shows; if it was there before, look at the kernel log for Xid 79",
        )  # fmt: skip
    lost = {g.index for g in gpus if g.lost}
    for name in (BEFORE, AFTER):
        for gpu in evidence.inventory(name):
            if gpu.lost is not None and (name == BEFORE or gpu.index not in lost):
                when = "" if name == BEFORE else " while it was checked"
                yield Finding(
                    "present",
                    gpu.where,
                    "fail",
                    f"does not answer{when}: {gpu.lost}",
                    "an answer to every query",
                    "rule",
                    "NVML",
                    GONE_ADVICE,
                    gpu.index,
                )
    yield from _still_there(evidence)
    later = evidence.alive(AFTER)
    for gpu in gpus:
        # What went wrong under load asks for it only then.
        looks = (later.get(gpu.index, gpu), gpu)
        action = next((found for g in looks if (found := g.field("GET_GPU_RECOVERY_ACTION"))), None)
        if action:
            yield Finding(
                "present", gpu.where, "fail", f"the driver says that it needs {RECOVERY.get(action, action)}",
                "no recovery needed", "rule", "NVML: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
                "do that, then check again", gpu.index,
            )  # fmt: skip


def _count(found: int, evidence: Evidence, standards: Standards) -> Finding:
    wanted = standards.expect.gpus
    shown = len(evidence.gpus)
    hidden = f", {found} in the machine" if found != shown else ""
    few = shown < (wanted or 1)
    name = standards.expect.gpu
    strange = [g.name for g in evidence.gpus if name and g.name != name]
    text = f"{shown} {evidence.gpus[0].name if evidence.gpus else 'GPUs'}{hidden}"
    return Finding(
        "present", "the node", "fail" if few or strange else "pass",
        f"{text}; {strange[0]} is not what was ordered" if strange else text,
        f"{wanted} {name or 'GPUs'}" if wanted or name else "at least one GPU", "rule",
        "the manifest" if wanted or name else "bench",
        "a GPU is missing on the bus, or hidden by CUDA_VISIBLE_DEVICES: lspci, nvidia-smi" if few else "",
    )  # fmt: skip


def _still_there(evidence: Evidence) -> Iterator[Finding]:
    """A GPU or a driver that stopped answering between the first look and the last."""
    after = evidence.readings.get(AFTER)
    if after is None or after.reason is not None:
        why = after.reason if after else "nobody looked"
        yield not_read("present", f"at the end: {why}", advice=GONE_ADVICE)
        return
    known = {g.index for g in evidence.inventory(AFTER) if g.lost is not None}
    for index in (gpu.index for gpu in evidence.gpus):
        errors = [s.gpus[index].lost for s in evidence.course if index < len(s.gpus) and s.gpus[index].lost]
        if errors and index not in known:
            yield Finding(
                "present", f"GPU {index}", "fail", f"did not answer in {len(errors)} samples: {errors[0]}",
                "an answer to every query", "rule", "NVML", GONE_ADVICE, index,
            )  # fmt: skip


CHECK = Check("present", "are all GPUs there, and do they stay?", judge)

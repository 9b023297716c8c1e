"""Check that all GPUs are present, as the kernel lists them, and answer NVML from first to last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.base.strict_json import from_json
from bench.node_check.checks import Check
from bench.node_check.judging.evidence import AFTER, BEFORE, Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards
from bench.records.genuine_gpus import contradictions
from bench.records.trial import KernelGpus

RECOVERY = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "to be drained of peer traffic",
    4: "to be drained and reset",
    5: "recovery of its IMEX domain",
    6: "a reset of its bus",
    7: "a reboot of the system",
}
NOT_HERE = "name those that nvidia-smi -L shows; if it was there before, look at the kernel log for Xid 79"
OTHER_ADVICE = "ask the vendor for the model that was ordered, or correct the manifest"
FEW_ADVICE = "a GPU is missing on the bus, or hidden by CUDA_VISIBLE_DEVICES: lspci, nvidia-smi"
GONE_ADVICE = "look at the kernel log for Xid 79 (fallen off the bus); reboot; if it goes again, return it"
FALSE_ADVICE = "NVML's library here says what the kernel does not: do not pay for GPUs that are not there"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail missing, lost and false GPUs and those that need a reset; not-run if NVML did not answer."""
    before = evidence.readings.get(BEFORE)
    if before is None or before.reason is not None:
        yield Question("present").unread(
            before.reason if before and before.reason else "NVML was not asked",
            advice="is the driver loaded, and are the devices visible here? nvidia-smi",
        )
        return
    yield _count(len(before.data["gpus"]), evidence, standards)
    for name in before.data.get("not_here", ()):
        yield Question("present", f"GPU {name}").judged(
            "fail",
            "CUDA_VISIBLE_DEVICES names it, but it is not present",
            expected="every GPU that is named",
            source="bench",
            advice=NOT_HERE,
        )
    yield from _as_the_kernel_says(evidence, before.data.get("kernel_gpus"))
    gpus = evidence.inventory(BEFORE)
    lost = {gpu.index: gpu.lost for gpu in gpus if gpu.lost is not None}
    yield from (_lost(index, f"does not answer: {error}") for index, error in lost.items())
    for gpu in evidence.inventory(AFTER):
        if gpu.lost is not None and gpu.index not in lost:
            yield _lost(gpu.index, f"does not answer while it was checked: {gpu.lost}")
    yield from _still_there(evidence)
    yield from _recovery(evidence)


def _count(in_machine: int, evidence: Evidence, standards: Standards) -> Finding:
    count, model = standards.expect.gpus, standards.expect.gpu
    shown = len(evidence.gpus)
    few = shown < (count or 1)
    other_model = next((gpu.name for gpu in evidence.gpus if model and gpu.name != model), None)
    found = f"{shown} {evidence.gpus[0].name if evidence.gpus else 'GPUs'}"
    if in_machine != shown:
        found += f", {in_machine} in the machine"
    if other_model:
        found += f"; {other_model} is not what was ordered"
    ordered = f"{count} {model or 'GPUs'}" if count else f"only {model}" if model else None
    return Question("present").judged(
        verdict_of(fail=few or other_model),
        found,
        expected=ordered or "at least one GPU",
        source="the manifest" if ordered else "bench",
        advice=FEW_ADVICE if few else OTHER_ADVICE,
    )


def _as_the_kernel_says(evidence: Evidence, listed: Any) -> Iterator[Finding]:
    """Compare NVML's GPUs with the kernel's list, which bundles of older versions do not have."""
    if listed is None:
        return
    question, kernel = Question("present", "the kernel's list"), from_json(KernelGpus, listed)
    false = "; ".join(contradictions(evidence.gpus, kernel))
    if kernel.unseen and not false:
        yield question.unread(kernel.unseen, counts=False)
        return
    yield question.judged(
        verdict_of(fail=false),
        false or f"has each of the {len(evidence.gpus)} GPUs that NVML names",
        expected="the GPUs that the kernel has, each a card of its own",
        source="/proc/driver/nvidia/gpus, /sys/bus/pci",
        advice=FALSE_ADVICE,
    )


def _lost(index: int, found: str) -> Finding:
    return Question.of_gpu("present", index).judged(
        "fail", found, expected="an answer to every query", source="NVML", advice=GONE_ADVICE
    )


def _still_there(evidence: Evidence) -> Iterator[Finding]:
    """Report GPUs that stopped answering between the first look and the last."""
    after = evidence.readings.get(AFTER)
    if after is None or after.reason is not None:
        why = after.reason if after else "NVML was not asked"
        yield Question("present").unread(f"at the end: {why}", advice=GONE_ADVICE)
        return
    lost_at_the_end = {gpu.index for gpu in evidence.inventory(AFTER) if gpu.lost is not None}
    for index in (gpu.index for gpu in evidence.gpus):
        errors = [s.gpus[index].lost for s in evidence.course if index < len(s.gpus) and s.gpus[index].lost]
        if errors and index not in lost_at_the_end:
            yield _lost(index, f"did not answer in {len(errors)} samples: {errors[0]}")


def _recovery(evidence: Evidence) -> Iterator[Finding]:
    """Report GPUs for which the driver asks for a reset or the like, before the check or after the load."""
    later = evidence.alive(AFTER)
    for gpu in evidence.inventory(BEFORE):
        field = "GET_GPU_RECOVERY_ACTION"
        action = later.get(gpu.index, gpu).field(field) or gpu.field(field)
        if action:
            yield Question.of_gpu("present", gpu.index).judged(
                "fail",
                f"the driver says that it needs {RECOVERY.get(action, action)}",
                expected="no recovery needed",
                source="NVML: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
                advice="do that, then check again",
            )


CHECK = Check("present", "are all GPUs there, and do they stay?", judge, passive=True)

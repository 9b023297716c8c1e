"""ECC: is it on, and how many errors has the memory had, since boot, ever, and while it was checked?"""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Verdict
from bench.node_check.judging.standards import Standards

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
MANY_CORRECTED = 1000  # since boot: a page that fails again and again
RETURN = "drain the node, reset the GPU so that rows are remapped, check again; if it comes back, return it"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        later = after.get(gpu.index, gpu)
        mode = gpu.get("EccMode")
        yield from _mode(gpu, mode, standards)
        if mode and mode[0]:
            yield _counts(gpu, later)
            yield from _threshold(later)


def _mode(gpu: Answers, mode: list[int] | None, standards: Standards) -> Iterator[Finding]:
    wanted = standards.profile.ecc if standards.profile else False
    if mode is None:
        counts = wanted and gpu.why("EccMode") != "NotSupported"
        yield not_read(
            "ecc", f"{gpu.where} says nothing of ECC: {gpu.why('EccMode')}", counts=counts, gpu=gpu.index
        )
        return
    current, pending = mode
    off = wanted and not current
    changes = current != pending
    verdict: Verdict = "fail" if off else "warn" if changes else "pass"
    yield Finding(
        "ecc",
        f"{gpu.where} mode",
        verdict,
        ("on" if current else "off")
        + (f", {'on' if pending else 'off'} after the next reset" if changes else ""),
        "on" if wanted else "as its owner wants it",
        "reference" if standards.profile else "rule",
        standards.profile.sources[0] if standards.profile else "NVML",
        "nvidia-smi -e 1 and a reset (root)" if off else "reset the GPU (root)" if changes else "",
        gpu.index,
    )


def _counts(before: Answers, after: Answers) -> Finding:
    uncorrected, corrected = (
        after.number(f"TotalEccErrors.{kind}.{VOLATILE}") for kind in (UNCORRECTED, CORRECTED)
    )
    ever = after.number(f"TotalEccErrors.{UNCORRECTED}.{AGGREGATE}")
    if uncorrected is None:
        return not_read(
            "ecc",
            f"{before.where}: {after.why(f'TotalEccErrors.{UNCORRECTED}.{VOLATILE}')}",
            gpu=before.index,
        )
    verdict: Verdict = "pass"
    if ever or (corrected or 0) >= MANY_CORRECTED:
        verdict = "warn"
    if uncorrected:
        verdict = "fail"
    then = before.number(f"TotalEccErrors.{UNCORRECTED}.{VOLATILE}")
    new = f", {uncorrected - then:.0f} of them now" if then is not None and uncorrected > then else ""
    return Finding(
        "ecc",
        f"{before.where} errors",
        verdict,
        f"{uncorrected:.0f} uncorrected since boot{new}, {corrected or 0:.0f} corrected; "
        f"{ever or 0:.0f} uncorrected ever",
        f"none uncorrected, under {MANY_CORRECTED} corrected since boot",
        "rule",
        "NVIDIA GPU Memory Error Management",
        RETURN if verdict != "pass" else "",
        before.index,
    )


def _threshold(gpu: Answers) -> Iterator[Finding]:
    if (gpu.get("SramEccErrorStatus") or {}).get("bThresholdExceeded"):
        yield Finding(
            "ecc",
            f"{gpu.where} SRAM",
            "fail",
            "more SRAM errors than the card's own threshold",
            "fewer",
            "rule",
            "NVML: nvmlDeviceGetSramEccErrorStatus",
            "return it: this is NVIDIA's own word for a replacement",
            gpu.index,
        )


CHECK = Check("ecc", "is ECC on, and is the memory without errors?", judge)

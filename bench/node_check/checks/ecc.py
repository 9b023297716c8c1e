"""Check that ECC is on, and count memory errors: since boot, ever, and during the check. From NVML."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
MANY_CORRECTED = 1000  # since boot: a page that fails again and again
RETURN = "drain the node, reset the GPU so that rows are remapped, check again; if it comes back, return it"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail if ECC is off where the profile has it, or for uncorrected errors since boot; older ones warn."""
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        later = after.get(gpu.index, gpu)
        mode = gpu.get("EccMode")
        yield from _mode(gpu, mode, standards)
        if mode and mode[0]:
            yield _counts(gpu, later)
            yield from _threshold(later)


def _mode(gpu: Answers, mode: list[int] | None, standards: Standards) -> Iterator[Finding]:
    profile = standards.profile
    expected = profile.ecc if profile else False
    if mode is None:
        why = gpu.why("EccMode")
        yield Question.of_gpu("ecc", gpu.index).unread(
            f"{gpu.where} does not report ECC: {why}", counts=expected and why != "NotSupported"
        )
        return
    current, pending = mode
    off = expected and not current
    changes = current != pending
    later = f", {'on' if pending else 'off'} after the next reset" if changes else ""
    yield Question.of_gpu("ecc", gpu.index, "mode").judged(
        verdict_of(fail=off, warn=changes),
        f"{'on' if current else 'off'}{later}",
        expected="on" if expected else "as its owner wants it",
        basis="reference" if profile else "rule",
        source=profile.sources[0] if profile else "NVML",
        advice="nvidia-smi -e 1 and a reset (root)" if off else "reset the GPU (root)",
    )


def _counts(before: Answers, after: Answers) -> Finding:
    uncorrected, corrected = (
        after.number(f"TotalEccErrors.{kind}.{VOLATILE}") for kind in (UNCORRECTED, CORRECTED)
    )
    ever = after.number(f"TotalEccErrors.{UNCORRECTED}.{AGGREGATE}")
    if uncorrected is None:
        why = after.why(f"TotalEccErrors.{UNCORRECTED}.{VOLATILE}")
        return Question.of_gpu("ecc", before.index).unread(f"{before.where}: {why}")
    earlier = before.number(f"TotalEccErrors.{UNCORRECTED}.{VOLATILE}")
    grown = earlier is not None and uncorrected > earlier
    new = f", {uncorrected - (earlier or 0):.0f} of them now" if grown else ""
    return Question.of_gpu("ecc", before.index, "errors").judged(
        verdict_of(fail=uncorrected, warn=ever or (corrected or 0) >= MANY_CORRECTED),
        f"{uncorrected:.0f} uncorrected since boot{new}, {corrected or 0:.0f} corrected; "
        f"{ever or 0:.0f} uncorrected ever",
        expected=f"none uncorrected, under {MANY_CORRECTED} corrected since boot",
        source="NVIDIA GPU Memory Error Management",
        advice=RETURN,
    )


def _threshold(gpu: Answers) -> Iterator[Finding]:
    if (gpu.get("SramEccErrorStatus") or {}).get("bThresholdExceeded"):
        yield Question.of_gpu("ecc", gpu.index, "SRAM").judged(
            "fail",
            "more SRAM errors than the card's own threshold",
            expected="fewer",
            source="NVML: nvmlDeviceGetSramEccErrorStatus",
            advice="return it: NVIDIA's criterion for a replacement is met",
        )


CHECK = Check("ecc", "is ECC on, and is the memory without errors?", judge, passive=True)

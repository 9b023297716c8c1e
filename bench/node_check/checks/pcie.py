"""Check the PCIe link of each GPU while data moves: idle links slow down to save power. From NVML."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check
from bench.node_check.judging import WITHOUT_LOAD
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence, GpuSample, grown
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

UNDER_LOAD = ("copies", "matmul", "soak")  # readings during which a link runs at full speed
ERRORS = {
    "PCIE_REPLAY_COUNTER": "replays",
    "PCIE_COUNT_CORRECTABLE_ERRORS": "corrected errors",
    "PCIE_COUNT_NON_FATAL_ERROR": "non-fatal errors",
    "PCIE_COUNT_FATAL_ERROR": "fatal errors",
    "PCIE_COUNT_BAD_TLP": "bad packets",
    "PCIE_COUNT_BAD_DLLP": "bad link packets",
}
RESEAT = "reseat the card or its riser, and look at the slot's speed in the BIOS"
REPLAYS_WARN = 10  # errors during the check; a few are noise


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail a link below the expected speed under load, or below its width at rest, and fatal bus errors."""
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        yield _link(gpu, evidence, standards)
        if gpu.index in after:
            yield from _errors(gpu, after[gpu.index])


def _link(gpu: Answers, evidence: Evidence, standards: Standards) -> Finding:
    profile, expect = standards.profile, standards.expect
    generation = expect.pcie_generation or (profile.pcie_generation if profile else None)
    width = expect.pcie_width or (profile.pcie_width if profile else None)
    source = profile.sources[0] if profile else ""
    if expect.pcie_generation or expect.pcie_width:
        source = "the manifest"
    if generation is None or width is None:
        generation = generation or int(gpu.number("MaxPcieLinkGeneration") or 0) or None
        width = width or int(gpu.number("MaxPcieLinkWidth") or 0) or None
        source = "NVML: the most that card and slot can do"
    samples = _samples(gpu.index, evidence)
    links = [
        (sample.pcie_generation, sample.pcie_width)
        for sample in samples
        if sample.pcie_generation is not None and sample.pcie_width is not None
    ]
    question = Question.of_gpu("pcie", gpu.index)
    if evidence.level in WITHOUT_LOAD:
        return _width_at_rest(question, gpu, width, source)
    if samples and not links:
        return question.unread(f"{gpu.where} does not report its link's speed", counts=False)
    if not links or generation is None or width is None:
        return question.unread(
            f"{gpu.where} has no sample under load",
            advice="run a check that loads it: copies, matmul or soak",
        )
    best_generation, best_width = max(links)  # the best of the samples: between two bursts a link may rest
    return question.judged(
        verdict_of(fail=best_generation < generation or best_width < width),
        f"gen{best_generation} x{best_width} under load",
        expected=f"gen{generation} x{width}",
        basis="reference" if profile else "rule",
        source=source,
        advice=RESEAT,
    )


def _samples(index: int, evidence: Evidence) -> list[GpuSample]:
    """Return the samples of a GPU under load in which it answered."""
    loaded = (sample.gpus for name in UNDER_LOAD for sample in evidence.during(name))
    return [gpus[index] for gpus in loaded if index < len(gpus) and gpus[index].lost is None]


def _width_at_rest(question: Question, gpu: Answers, width: int | None, source: str) -> Finding:
    """Judge the width alone: a link without load lowers its generation to save power, but keeps its lanes."""
    now = gpu.number("CurrPcieLinkWidth")
    if now is None or width is None:
        return question.unread(f"{gpu.where} does not report its link's width", counts=False)
    return question.judged(
        verdict_of(fail=now < width),
        f"x{now:.0f} without load",
        expected=f"x{width}",
        source=source,
        advice=RESEAT,
    )


def _errors(before: Answers, after: Answers) -> Iterator[Finding]:
    new = grown({name: (before.field(name), after.field(name)) for name in ERRORS})
    if new is None:
        return
    grave = any("FATAL" in name for name in new)
    many = sum(new.values()) >= REPLAYS_WARN
    yield Question.of_gpu("pcie", before.index, "bus errors").judged(
        verdict_of(fail=grave, warn=many),
        ", ".join(f"{count} {ERRORS[name]}" for name, count in new.items()) or "none while it was checked",
        expected=f"fewer than {REPLAYS_WARN}, none of them fatal, while it was checked",
        source="NVML: NVML_FI_DEV_PCIE_COUNT_*",
        advice=RESEAT,
    )


CHECK = Check("pcie", "does every link run at full speed under load, without errors?", judge, passive=True)

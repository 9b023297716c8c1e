"""The PCIe link of each GPU while data moves: idle links fall back to save power, so idle says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

UNDER_LOAD = ("copies", "matmul", "soak")  # where a link is at its full speed
ERRORS = {
    "PCIE_REPLAY_COUNTER": "replays", "PCIE_COUNT_CORRECTABLE_ERRORS": "corrected errors",
    "PCIE_COUNT_NON_FATAL_ERROR": "non-fatal errors", "PCIE_COUNT_FATAL_ERROR": "fatal errors",
    "PCIE_COUNT_BAD_TLP": "bad packets", "PCIE_COUNT_BAD_DLLP": "bad link packets",
}  # fmt: skip
RESEAT = "reseat the card or its riser, and look at the slot's speed in the BIOS"
REPLAYS_WARN = 10  # while it was checked; a few are noise


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        yield _link(gpu, evidence, standards)
        if gpu.index in after:
            yield from _errors(gpu, after[gpu.index])


def _link(gpu: Answers, evidence: Evidence, standards: Standards) -> Finding:
    profile, expect = standards.profile, standards.expect
    generation = expect.pcie_generation or (profile.pcie_generation if profile else None)
    width = expect.pcie_width or (profile.pcie_width if profile else None)
    source = (
        "the manifest"
        if expect.pcie_generation or expect.pcie_width
        else profile.sources[0]
        if profile
        else ""
    )
    if generation is None or width is None:  # what card and slot can do together
        generation = generation or int(gpu.number("MaxPcieLinkGeneration") or 0) or None
        width = width or int(gpu.number("MaxPcieLinkWidth") or 0) or None
        source = "NVML: the most that card and slot can do"
    seen = [
        (sample.gpus[gpu.index].pcie_generation, sample.gpus[gpu.index].pcie_width)
        for name in UNDER_LOAD
        for sample in evidence.during(name)
        if gpu.index < len(sample.gpus) and sample.gpus[gpu.index].lost is None
    ]
    known = [(g, w) for g, w in seen if g is not None and w is not None]
    if seen and not known:
        return not_read("pcie", f"{gpu.where} does not say what its link does", counts=False, gpu=gpu.index)
    if not known or generation is None or width is None:
        return not_read(
            "pcie", f"{gpu.where} was not seen under load", advice="the checks that load it must run: copies",
            gpu=gpu.index,
        )  # fmt: skip
    # The best of the samples: between two bursts a link may rest.
    best = max(known, key=lambda link: (link[0], link[1]))
    low = best[0] < generation or best[1] < width
    return Finding(
        "pcie",
        gpu.where,
        "fail" if low else "pass",
        f"gen{best[0]} x{best[1]} under load",
        f"gen{generation} x{width}",
        "reference" if profile else "rule",
        source,
        RESEAT if low else "",
        gpu.index,
    )


def _errors(before: Answers, after: Answers) -> Iterator[Finding]:
    grown, known = [], 0
    for name, words in ERRORS.items():
        then, now = before.field(name), after.field(name)
        if then is None or now is None:
            continue
        known += 1
        if now > then:
            grown.append((name, words, now - then))
    if not known:
        return
    grave = any("FATAL" in name for name, _, _ in grown)
    many = sum(count for _, _, count in grown) >= REPLAYS_WARN
    yield Finding(
        "pcie", f"{before.where} bus errors", "fail" if grave else "warn" if many else "pass",
        ", ".join(f"{count} {words}" for _, words, count in grown) or "none while it was checked",
        f"fewer than {REPLAYS_WARN}, none of them fatal, while it was checked", "rule",
        "NVML: NVML_FI_DEV_PCIE_COUNT_*", RESEAT if grave or many else "", before.index,
    )  # fmt: skip


CHECK = Check("pcie", "does every link run at full speed under load, without errors?", judge)

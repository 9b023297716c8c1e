"""Persistence and power limits: what silently costs minutes at every start, or a tenth of every step."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Basis, Finding, Verdict
from bench.node_check.judging.standards import Standards


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    for gpu in evidence.alive(BEFORE).values():
        yield _limit(gpu, standards)
        yield from _persistence(gpu, standards)


def _limit(gpu: Answers, standards: Standards) -> Finding:
    enforced = gpu.number("EnforcedPowerLimit") or gpu.number("PowerManagementLimit")
    if enforced is None:
        return not_read("power", f"{gpu.where} does not say its power limit", counts=False, gpu=gpu.index)
    default = gpu.number("PowerManagementDefaultLimit")
    profile = standards.profile
    basis: Basis = "rule"
    wanted, source = (default or 0.0) / 1000, "NVML: the card's default"
    if profile and profile.power_watts:
        wanted, basis, source = float(profile.power_watts), "reference", profile.sources[0]
    if standards.expect.power_watts:
        wanted, basis, source = float(standards.expect.power_watts), "rule", "the manifest"
    if not wanted:
        return not_read(
            "power", f"{gpu.where} does not say its usual power limit", counts=False, gpu=gpu.index
        )
    low = enforced / 1000 < wanted - 1
    return Finding(
        "power",
        f"{gpu.where} limit",
        "fail" if low else "pass",
        f"{enforced / 1000:.0f} W",
        f"{wanted:.0f} W",
        basis,
        source,
        "nvidia-smi -pl (root), unless the rack's power is capped on purpose: then say so under expect"
        if low
        else "",
        gpu.index,
        None,
        enforced / 1000,
        wanted,
        "W",
    )


def _persistence(gpu: Answers, standards: Standards) -> Iterator[Finding]:
    mode = gpu.number("PersistenceMode")
    if mode is None:
        yield not_read("power", f"{gpu.where} does not say its persistence mode", counts=False, gpu=gpu.index)
        return
    off: Verdict = "fail" if standards.expect.persistence else "warn"
    verdict: Verdict = "pass" if mode or standards.expect.persistence is False else off
    yield Finding(
        "power",
        f"{gpu.where} persistence",
        verdict,
        "on" if mode else "off",
        "on",
        "rule",
        "NVIDIA: driver persistence",
        "" if verdict == "pass" else "start nvidia-persistenced (root)",
        gpu.index,
    )


CHECK = Check(
    "power", "may every GPU draw its full power, and does its driver stay loaded?", judge, blames="node"
)

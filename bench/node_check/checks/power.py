"""Check power limits and persistence mode: a low limit slows every step, no persistence slows starts."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check
from bench.node_check.judging import WITHOUT_LOAD
from bench.node_check.judging.evidence import BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Basis, Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards
from bench.records.slowdown import BAD_REASONS

LIMIT_ADVICE = "raise it with nvidia-smi -pl (root); if it is capped on purpose, set power_watts under expect"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge each GPU's power limit and persistence, and without load whether heat or power slow it down."""
    for gpu in evidence.alive(BEFORE).values():
        yield _limit(gpu, standards)
        yield _persistence(gpu, standards)
        if evidence.level in WITHOUT_LOAD:
            yield from _held_back(gpu)


def _limit(gpu: Answers, standards: Standards) -> Finding:
    milliwatts = gpu.number("EnforcedPowerLimit") or gpu.number("PowerManagementLimit")
    question = Question.of_gpu("power", gpu.index)
    if milliwatts is None:
        return question.unread(f"{gpu.where} does not report its power limit", counts=False)
    profile = standards.profile
    basis: Basis = "rule"
    expected, source = (gpu.number("PowerManagementDefaultLimit") or 0.0) / 1000, "NVML: the card's default"
    if profile and profile.power_watts:
        expected, basis, source = float(profile.power_watts), "reference", profile.sources[0]
    if standards.expect.power_watts:
        expected, basis, source = float(standards.expect.power_watts), "rule", "the manifest"
    if not expected:
        return question.unread(f"{gpu.where} does not report its usual power limit", counts=False)
    enforced = milliwatts / 1000
    return Question("power", f"{gpu.where} limit", gpu.index, unit="W").judged(
        verdict_of(fail=enforced < expected - 1),
        f"{enforced:.0f} W",
        expected=f"{expected:.0f} W",
        basis=basis,
        source=source,
        advice=LIMIT_ADVICE,
        value=enforced,
        reference=expected,
    )


def _persistence(gpu: Answers, standards: Standards) -> Finding:
    mode = gpu.number("PersistenceMode")
    if mode is None:
        reason = f"{gpu.where} does not report its persistence mode"
        return Question.of_gpu("power", gpu.index).unread(reason, counts=False)
    expected = standards.expect.persistence
    off = not mode and expected is not False
    return Question.of_gpu("power", gpu.index, "persistence").judged(
        verdict_of(fail=off and expected, warn=off),
        "on" if mode else "off",
        expected="on",
        source="NVIDIA: driver persistence",
        advice="start nvidia-persistenced (root)",
    )


def _held_back(gpu: Answers) -> Iterator[Finding]:
    """Warn of a GPU that heat or its power supply slows down at this moment; under load, the soak judges."""
    reasons = gpu.number("CurrentClocksEventReasons")
    if reasons is None:
        return
    found = [words for bit, (words, _) in BAD_REASONS.items() if int(reasons) & bit]
    yield Question.of_gpu("power", gpu.index, "clocks").judged(
        verdict_of(fail=False, warn=found),
        " and ".join(found) or "not held back",
        expected="no thermal or hardware slowdown",
        source="NVML: nvmlClocksEventReasons",
        advice="look at airflow, inlet temperature, power cables and supplies; then check at the level quick",
    )


CHECK = Check(
    "power",
    "may every GPU draw its full power, and does its driver stay loaded?",
    judge,
    blames="node",
    passive=True,
)

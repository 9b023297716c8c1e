"""Keep all GPUs under full load for minutes; judge the rate over time, throttling and temperature."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from math import fsum
from statistics import mean, median
from typing import Any

from bench.base.strict_json import to_json
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.matmul import precisions
from bench.node_check.judging.evidence import BEFORE, Evidence, Figure, GpuSample, Sample
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards
from bench.records.slowdown import BAD_REASONS

SIZE, TINY_SIZE = 8192, 256
WINDOW_SECONDS = 5.0
SAGS_WARN, SAGS_FAIL = 4.0, 10.0  # percent, from the first third of the windows to the last
MARGIN_CELSIUS = 5  # below the temperature at which the card slows itself down
ADVICE = "look at power and temperature under load: airflow, power supply, a neighbour that heats"
RULES = Tolerances(peers_warn=6, peers_fail=10, history_warn=5, advice=ADVICE)
# Not faults, but reasons to be slow: settings last until they are reset or the node reboots.
SET_BY_SOMEBODY = {0x02: "clocks set by a user", 0x10: "sync boost"}
REASONS_SOURCE = "NVML: nvmlClocksEventReasons"
SETTLING = 0.2  # first share of the samples, left out because clocks still rise
# Share of the samples. A warm card slows down now and then; one that does so half of the time is not cooled.
# A card that was slowed down all of the time trained at a fifth of its limit (results/slowed-h100).
LASTING = 0.5


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Multiply matrices for the soak's seconds, in windows; compare the bits after each window."""
    import torch

    size = TINY_SIZE if budget.tiny else SIZE
    half = torch.bfloat16 if "bf16" in precisions(rig) else torch.float16
    dtype = half if rig.kind == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=rig.device, dtype=dtype) for _ in range(2))
    out, first = torch.empty_like(a), torch.mm(a, b)
    figures: list[Figure] = []
    wrong = 0
    rig.wait()
    deadline = time.monotonic() + budget.soak_seconds
    while (left := deadline - time.monotonic()) > 0:
        rig.say(f"{left:.0f} s left")
        timed = rig.timed(
            lambda: torch.mm(a, b, out=out),
            2.0 * size**3,
            wait=False,
            seconds=min(WINDOW_SECONDS, left),
            warm_seconds=0.0,
        )
        # Each window counts as one sample of all the work done in it.
        figures.append(
            Figure("soak", rig.gpu, "FLOP/s", timed.work * len(timed.samples), (sum(timed.samples),))
        )
        wrong += not torch.equal(out, first)
    everyone = rig.gather({"gpu": rig.gpu, "windows": to_json(figures), "wrong_windows": wrong})
    return {"gpus": everyone}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge each GPU's sag over time, its mean rate, and on GPUs throttling and heat."""
    data = evidence.data("soak")
    if data is None:
        return
    figures = []
    for gpu in data["gpus"]:
        rates = [w["work"] / w["samples"][0] for w in gpu["windows"]]
        work = fsum(w["work"] for w in gpu["windows"])
        seconds = fsum(w["samples"][0] for w in gpu["windows"])
        figures.append(Figure("soak", gpu["gpu"], "FLOP/s", work, (seconds,)))
        yield _over_time(gpu["gpu"], rates, gpu["wrong_windows"])
    yield from judge_figures("soak", figures, evidence, standards, RULES)
    if evidence.device == "cuda":
        yield from _course(evidence)


def _over_time(index: int, rates: list[float], wrong_windows: int) -> Finding:
    """Compare the last third of the windows with the first third."""
    third = max(1, len(rates) // 3)
    begin, end = median(rates[:third]), median(rates[-third:])
    sag = 100 * (1 - end / begin)
    bits = f"; {wrong_windows} windows ended with other bits" if wrong_windows else ""
    return Question.of_gpu("soak", index, "over time").judged(
        verdict_of(fail=sag > SAGS_FAIL or wrong_windows, warn=sag > SAGS_WARN),
        f"{quantity(begin, 'FLOP/s')} at first, {quantity(end, 'FLOP/s')} at last ({-sag:+.1f}%){bits}",
        expected=f"at most {SAGS_WARN:g}% less at last, and the same bits",
        source="bench",
        advice=ADVICE,
    )


def _course(evidence: Evidence) -> Iterator[Finding]:
    samples = list(evidence.during("soak"))
    if not samples:
        reason = "no sample of clocks, power and temperature was taken"
        yield Question("soak").unread(reason, advice="see logs/watch.txt")
        return
    for gpu in evidence.gpus:
        yield _throttling(gpu.index, samples)
        yield _heat(gpu.index, samples, evidence)


def _answering(index: int, samples: list[Sample]) -> list[GpuSample]:
    """Select the samples in which the GPU answered; values missing in them are not reported by its model."""
    return [s.gpus[index] for s in samples if index < len(s.gpus) and s.gpus[index].lost is None]


def _throttling(index: int, samples: list[Sample]) -> Finding:
    answering = _answering(index, samples)
    reasons = [g.throttle_reasons for g in answering if g.throttle_reasons is not None]
    if not reasons:
        reason = f"GPU {index} does not report why it slows down"
        return Question.of_gpu("soak", index).unread(reason, counts=not answering)
    counts = {bit: sum(bool(r & bit) for r in reasons) for bit in BAD_REASONS}
    slowdowns = [(*BAD_REASONS[bit], count) for bit, count in counts.items() if count]
    grave = any(kind == "fail" or count >= LASTING * len(reasons) for _, kind, count in slowdowns)
    return Question.of_gpu("soak", index, "throttling").judged(
        verdict_of(fail=grave, warn=slowdowns),
        "; ".join(f"{name} in {count} of {len(reasons)} samples" for name, _, count in slowdowns)
        or " and ".join(["only the power cap", *_settings(reasons)]),
        expected="no thermal or hardware slowdown",
        source=REASONS_SOURCE,
        advice="look at airflow, inlet temperature, power cables and supplies",
    )


def _settings(reasons: list[int]) -> list[str]:
    """Describe slowdowns that a setting causes, with the number of samples that show them."""
    counts = {words: sum(bool(r & bit) for r in reasons) for bit, words in SET_BY_SOMEBODY.items()}
    return [f"{words} (in {count} of {len(reasons)} samples)" for words, count in counts.items() if count]


def _heat(index: int, samples: list[Sample], evidence: Evidence) -> Finding:
    answering = _answering(index, samples[int(SETTLING * len(samples)) :])
    celsius = [g.celsius for g in answering if g.celsius is not None]
    watts = [g.power_watts for g in answering if g.power_watts is not None]
    clocks = [g.sm_mhz for g in answering if g.sm_mhz is not None]
    if not celsius:
        reason = f"GPU {index} does not report its temperature"
        return Question.of_gpu("soak", index).unread(reason, counts=not answering)
    answers = evidence.alive(BEFORE).get(index)
    slow = answers.number("TemperatureThreshold.1") if answers else None
    unknown = "the card's limit, which it does not report"
    limit = unknown if slow is None else f"{slow - MARGIN_CELSIUS:.0f} °C"
    parts = [f"up to {max(celsius)} °C"]
    if watts:
        parts.append(f"{mean(watts):.0f} W")
    if clocks:
        parts.append(f"{median(clocks):.0f} MHz")
    return Question("soak", f"GPU {index} temperature", index, unit="°C").judged(
        verdict_of(fail=False, warn=slow is not None and max(celsius) > slow - MARGIN_CELSIUS),
        ", ".join(parts),
        expected=f"at most {limit}",
        source="the card's own slowdown temperature (NVML)",
        advice="look at airflow and inlet temperature",
        value=float(max(celsius)),
    )


CHECK = Check(
    "soak",
    "does it hold full load without heat, throttling or wrong bits?",
    judge,
    measure,
    workers="team",
    soaks=True,
)

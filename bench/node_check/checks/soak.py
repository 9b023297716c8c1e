"""Full load for long: does the rate hold, and what do clocks, power, temperature and throttling say?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from math import fsum
from statistics import mean, median
from typing import Any

from bench.base.strict_json import to_json
from bench.node_check.checks import Check, CheckBudget, Rig, not_read
from bench.node_check.checks.matmul import precisions
from bench.node_check.judging.evidence import BEFORE, Evidence, Figure, GpuSample, Sample
from bench.node_check.judging.finding import Finding, Verdict, quantity
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards
from bench.records.slowdown import BAD_REASONS

SIZE, TINY_SIZE = 8192, 256
WINDOW_SECONDS = 5.0
SAGS_WARN, SAGS_FAIL = 4.0, 10.0  # percent, from its first steady third to its last
MARGIN_CELSIUS = 5  # below the temperature at which the card slows itself down
RULES = Tolerances(
    peers_warn=6, peers_fail=10, history_warn=5,
    advice="look at power and temperature under load: airflow, power supply, a neighbour that heats",
)  # fmt: skip
# Not a fault, and yet a reason to be slow: an owner's own setting, which outlives whoever made it.
SET_BY_SOMEBODY = {0x02: "clocks that somebody set", 0x10: "sync boost"}
REASONS_SOURCE = "NVML: nvmlClocksEventReasons"
SETTLING = 0.2  # of the samples: clocks rise at the beginning
# Of the samples: what is warm slows down now and then; what does so half of the time is not cooled. One that
# did it all of the time trained at a fifth of its limit (results/slowed-h100).
LASTING = 0.5


def measure(rig: Rig, effort: CheckBudget) -> Mapping[str, Any]:
    import torch

    size = TINY_SIZE if effort.tiny else SIZE
    half = torch.bfloat16 if "bf16" in precisions(rig) else torch.float16
    dtype = half if rig.kind == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=rig.device, dtype=dtype) for _ in range(2))
    out, first = torch.empty_like(a), torch.mm(a, b)
    figures: list[Figure] = []
    wrong = 0
    rig.wait()
    deadline = time.monotonic() + effort.soak_seconds
    while (left := deadline - time.monotonic()) > 0:
        rig.say(f"{left:.0f} s left")
        timed = rig.timed(
            lambda: torch.mm(a, b, out=out), 2.0 * size**3, wait=False,
            seconds=min(WINDOW_SECONDS, left), warm_seconds=0.0,
        )  # fmt: skip
        # A window is one sample: its length is what it is.
        figures.append(
            Figure("soak", rig.gpu, "FLOP/s", timed.work * len(timed.samples), (sum(timed.samples),))
        )
        wrong += not torch.equal(out, first)
    everyone = rig.gather({"gpu": rig.gpu, "windows": to_json(figures), "wrong_windows": wrong})
    return {"gpus": everyone}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    data = evidence.data("soak")
    if data is None:
        return
    whole = []
    for one in data["gpus"]:
        windows = [w["work"] / w["samples"][0] for w in one["windows"]]
        work = fsum(w["work"] for w in one["windows"])
        spent = fsum(w["samples"][0] for w in one["windows"])
        whole.append(Figure("soak", one["gpu"], "FLOP/s", work, (spent,)))
        yield _held(one, windows)
    yield from judge_figures("soak", whole, evidence, standards, RULES)
    if evidence.device == "cuda":
        yield from _course(evidence)


def _held(one: Mapping[str, Any], windows: list[float]) -> Finding:
    third = max(1, len(windows) // 3)
    begin, end = median(windows[:third]), median(windows[-third:])
    sag = 100 * (1 - end / begin)
    verdict = "fail" if sag > SAGS_FAIL or one["wrong_windows"] else "warn" if sag > SAGS_WARN else "pass"
    bits = f"; {one['wrong_windows']} windows ended in other bits" if one["wrong_windows"] else ""
    return Finding(
        "soak",
        f"GPU {one['gpu']} over time",
        verdict,  # type: ignore[arg-type]
        f"{quantity(begin, 'FLOP/s')} at first, {quantity(end, 'FLOP/s')} at last ({-sag:+.1f}%){bits}",
        f"at most {SAGS_WARN:g}% less at last, and the same bits",
        "rule",
        "bench",
        RULES.advice if verdict != "pass" else "",
        one["gpu"],
    )


def _course(evidence: Evidence) -> Iterator[Finding]:
    samples = list(evidence.during("soak"))
    if not samples:
        yield not_read(
            "soak", "no sample of clocks, power and temperature was taken", advice="see logs/watch.txt"
        )
        return
    for gpu in evidence.gpus:
        yield from _throttling(gpu.index, samples)
        yield from _heat(gpu.index, samples, evidence)


def _answering(index: int, samples: list[Sample]) -> list[GpuSample]:
    """What it said, if anything: of one that answers, what is missing is what its kind never says."""
    return [s.gpus[index] for s in samples if index < len(s.gpus) and s.gpus[index].lost is None]


def _throttling(index: int, samples: list[Sample]) -> Iterator[Finding]:
    of = _answering(index, samples)
    seen = [g.throttle_reasons for g in of if g.throttle_reasons is not None]
    if not seen:
        yield not_read("soak", f"GPU {index} says nothing of why it slows down", counts=not of, gpu=index)
        return
    counts = {bit: sum(bool(r & bit) for r in seen) for bit in BAD_REASONS}
    found = [(*BAD_REASONS[bit], count) for bit, count in counts.items() if count]
    grave = any(kind == "fail" or count >= LASTING * len(seen) for _, kind, count in found)
    worst: Verdict = "fail" if grave else "warn" if found else "pass"
    yield Finding(
        "soak", f"GPU {index} throttling", worst,
        "; ".join(f"{name} in {count} of {len(seen)} samples" for name, _, count in found)
        or " and ".join(["none but the power cap", *_settings(seen)]),
        "no thermal or hardware slowdown", "rule", REASONS_SOURCE,
        "look at airflow, inlet temperature, power cables and supplies" if found else "", index,
    )  # fmt: skip


def _settings(seen: list[int]) -> list[str]:
    counts = {words: sum(bool(r & bit) for r in seen) for bit, words in SET_BY_SOMEBODY.items()}
    return [f"{words} (in {count} of {len(seen)} samples)" for words, count in counts.items() if count]


def _heat(index: int, samples: list[Sample], evidence: Evidence) -> Iterator[Finding]:
    late = samples[int(SETTLING * len(samples)) :]
    of = _answering(index, late)
    celsius = [g.celsius for g in of if g.celsius is not None]
    watts = [g.power_watts for g in of if g.power_watts is not None]
    clocks = [g.sm_mhz for g in of if g.sm_mhz is not None]
    answers = evidence.alive(BEFORE).get(index)
    slow = answers.number("TemperatureThreshold.1") if answers else None
    if not celsius:
        yield not_read("soak", f"GPU {index} says nothing of its temperature", counts=not of, gpu=index)
        return
    hot = slow is not None and max(celsius) > slow - MARGIN_CELSIUS
    parts = [f"up to {max(celsius)} °C"]
    if watts:
        parts.append(f"{mean(watts):.0f} W")
    if clocks:
        parts.append(f"{median(clocks):.0f} MHz")
    limit = (
        f"{slow - MARGIN_CELSIUS:.0f} °C" if slow is not None else "the card's limit, which it does not say"
    )
    yield Finding(
        "soak",
        f"GPU {index} temperature",
        "warn" if hot else "pass",
        ", ".join(parts),
        f"at most {limit}",
        "rule",
        "the card's own slowdown temperature (NVML)",
        "look at airflow and inlet temperature" if hot else "",
        index,
        None,
        float(max(celsius)),
        None,
        "°C",
    )


CHECK = Check(
    "soak", "does it hold full load without heat, throttling or wrong bits?", judge, measure,
    workers="team", limit_seconds=60, soaks=True, needs=("torch",),
)  # fmt: skip

"""Check that every GPU is a card of its own, by its rate alone and its rate while all GPUs work.

A driver's library can name one card several times. Each name alone reaches the rate of the whole card, but
all names together share that rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.matmul import precisions
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards
from bench.records.genuine_gpus import LEAST_KEPT, RatePair, shared

SIZE, TINY_SIZE = 8192, 256
SECONDS = 0.3  # of each figure: with eight GPUs, the last one waits for seven others
ALONE, TOGETHER = "matmul alone", "matmul together"
ADVICE = "compare the addresses of its GPUs: nvidia-smi, /proc/driver/nvidia/gpus, lspci -d 10de:"


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time matrix products on each GPU alone, in turn, and then on all at once."""
    import torch

    size = TINY_SIZE if budget.tiny else SIZE
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[precisions(rig)[0]])
    a, b = (torch.randn(size, size, device=rig.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)

    def rate(name: str) -> Figure:
        work, times = rig.timed(
            lambda: torch.mm(a, b, out=out), 2.0 * size**3, wait=name == TOGETHER, seconds=SECONDS
        )
        return Figure(name, rig.gpu, "FLOP/s", work, times)

    figures = []
    for turn in range(rig.size):
        rig.say(f"GPU {rig.gpus[turn]} alone")
        rig.wait()
        if turn == rig.rank:
            figures.append(rate(ALONE))
    rig.wait()
    rig.say("all at once")
    figures.append(rate(TOGETHER))
    everyone = rig.gather(figures)
    return {"figures": [figure for mine in everyone for figure in mine]}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail if GPUs that work together lose so much of their rates that they must be one card."""
    rates = {(figure.gpu, figure.name): figure.rate for figure in evidence.figures("own-card")}
    pairs = {
        gpu.index: RatePair(rates[gpu.index, ALONE], rates[gpu.index, TOGETHER])
        for gpu in evidence.gpus
        if (gpu.index, ALONE) in rates and (gpu.index, TOGETHER) in rates
    }
    if not pairs:
        return
    kept = 100 * min(pair.kept for pair in pairs.values())
    fault = shared(pairs)
    yield Question("own-card").judged(
        verdict_of(fail=fault),
        fault or f"each of {len(pairs)} GPUs keeps {kept:.0f}% of its rate or more while all work",
        expected=f"at least {100 * LEAST_KEPT:.0f}% of the rate that each has alone",
        source="bench",
        advice=ADVICE,
    )


CHECK = Check(
    "own-card",
    "is every GPU a card of its own?",
    judge,
    measure,
    workers="team",
    least_gpus=2,
    limit_seconds=120,
    about_gpus=True,
    blames="node",
    has_older_bundles=True,
)

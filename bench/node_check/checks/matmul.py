"""Measure matrix products in every precision that training uses, on all GPUs at once, as in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards

SIZE, TINY_SIZE = 8192, 256
ADVICE = (
    "look at its clocks, power and temperature in the soak, and at who else computes there; were "
    "clocks locked (nvidia-smi -q -d CLOCK; -rgc frees them)? if it stays slow alone and cool, return it"
)
# Power and leakage differ from chip to chip: two healthy H200 of one node were 3% apart.
RULES = Tolerances(peers_warn=6, peers_fail=10, history_warn=5, advice=ADVICE)


def precisions(rig: Rig) -> tuple[str, ...]:
    """Return the precisions of the device's matrix units, the fastest first."""
    import torch

    if rig.kind == "cpu":
        return "bf16", "fp32"
    older = torch.cuda.get_device_capability(rig.device) < (8, 0)  # before Ampere bf16 is emulated
    return ("fp16", "fp32") if older else ("bf16", "fp16", "tf32", "fp32")


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time products of square matrices in each precision of the device, all GPUs at once."""
    import torch

    size = TINY_SIZE if budget.tiny else SIZE
    figures = []
    for precision in precisions(rig):
        rig.say(precision)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
        if rig.kind == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        # Random numbers: on zeros a GPU draws less power and runs faster than in training.
        a, b = (torch.randn(size, size, device=rig.device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        timed = rig.timed(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 2.0 * size**3)  # type: ignore[misc]
        figures.append(Figure(f"matmul-{precision}", rig.gpu, "FLOP/s", *timed))
    everyone = rig.gather(figures)
    return {"figures": [figure for mine in everyone for figure in mine]}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge each precision of each GPU by reference, peers and history; see `judge_figures`."""
    yield from judge_figures("matmul", evidence.figures("matmul"), evidence, standards, RULES)


CHECK = Check(
    "matmul",
    "does every GPU reach the arithmetic of its kind?",
    judge,
    measure,
    workers="team",
    limit_seconds=120,
)

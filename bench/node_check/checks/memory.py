"""Measure copies within each GPU's memory, in bytes read and written a second, all GPUs at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards

COPIED_BYTES, TINY_BYTES = 2 << 30, 4 << 20
ADVICE = "look at remapped rows, ECC errors and who else uses that memory; if it stays, return it"
RULES = Tolerances(peers_warn=3, peers_fail=6, history_warn=4, advice=ADVICE)


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time copies within each GPU, all GPUs at once; a copied byte counts twice, as read and as written."""
    import torch

    size = TINY_BYTES if budget.tiny else COPIED_BYTES
    source = torch.randint(0, 255, (size,), device=rig.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    figure = Figure("memory", rig.gpu, "B/s", *rig.timed(lambda: target.copy_(source), 2.0 * size))
    return {"figures": rig.gather(figure)}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge each GPU by reference, peers and history; see `judge_figures`."""
    yield from judge_figures("memory", evidence.figures("memory"), evidence, standards, RULES)


CHECK = Check("memory", "does every GPU's memory reach its bandwidth?", judge, measure, workers="team")

"""Measure copies between the host and each GPU, both ways: one GPU at a time, then all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards

COPIED_BYTES, TINY_BYTES = 512 << 20, 1 << 20
LEAST_SECONDS = 0.4
ADVICE = (
    "look at the link's generation and width under load (check pcie), at NUMA placement, and at "
    "other traffic on the bus; then reseat the card or its riser"
)
# A GPU at the other CPU socket has a longer path.
RULES = Tolerances(peers_warn=10, peers_fail=25, history_warn=8, advice=ADVICE)


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time copies of pinned memory: each GPU alone, and except at the level quick all at once."""
    import torch

    size = TINY_BYTES if budget.tiny else COPIED_BYTES
    on_gpu = torch.randint(0, 255, (size,), device=rig.device, dtype=torch.uint8)
    on_host = torch.empty_like(on_gpu, device="cpu", pin_memory=rig.kind == "cuda")
    ways = {
        "host-to-device": lambda: on_gpu.copy_(on_host, non_blocking=True),
        "device-to-host": lambda: on_host.copy_(on_gpu, non_blocking=True),
    }
    mine = []
    seconds = max(LEAST_SECONDS, budget.seconds / rig.size)  # eight GPUs, one at a time, take 8 times as long
    for turn in range(rig.size):
        rig.wait()
        if turn == rig.rank:
            rig.say(f"GPU {rig.gpu} alone")
            for name, call in ways.items():
                timed = rig.timed(call, float(size), wait=False, seconds=seconds, warm_seconds=0.1)
                mine.append(Figure(name, rig.gpu, "B/s", *timed))
    if rig.size > 1 and budget.depth != "quick":
        rig.say("all at once")
        for name, call in ways.items():
            mine.append(Figure(f"{name}, all at once", rig.gpu, "B/s", *rig.timed(call, float(size))))
    return {"figures": [figure for figures in rig.gather(mine) for figure in figures]}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge the rates of each GPU alone; those of all at once depend on the host and are only kept."""
    alone = [f for f in evidence.figures("copies") if "at once" not in f.name]
    yield from judge_figures("copies", alone, evidence, standards, RULES)


CHECK = Check(
    "copies",
    "does data get to and from every GPU at the speed of its bus?",
    judge,
    measure,
    workers="team",
    limit_seconds=150,
)

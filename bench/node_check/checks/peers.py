"""Measure copies from every GPU to every other, and check which pairs have direct access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from bench.base.strict_json import to_json
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.nvlink import linked_to_all
from bench.node_check.judging.evidence import BEFORE, Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.judge_figures import Tolerances, by_usual, judge_figures
from bench.node_check.judging.standards import Standards

COPIED_BYTES, TINY_BYTES = 256 << 20, 1 << 20
ADVICE = "look at the NVLink states and error counters of both GPUs (check nvlink), and at the topology"
RULES = Tolerances(peers_warn=8, peers_fail=20, history_warn=8, advice=ADVICE)
FIGURES_TIME, LEAST_SECONDS = 8, 0.1


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time copies from every GPU to every other, one pair at a time, and note which have direct access."""
    import torch

    size = TINY_BYTES if budget.tiny else COPIED_BYTES
    figures, direct = [], {}
    # Eight GPUs have 56 pairs, which share the time of eight figures.
    pairs = rig.size * (rig.size - 1)
    seconds = max(LEAST_SECONDS, min(budget.seconds, FIGURES_TIME * budget.seconds / pairs))
    for a in range(rig.size):
        source = torch.randint(0, 255, (size,), device=rig.at(a), dtype=torch.uint8)
        for b in range(rig.size):
            if a == b:
                continue
            pair = f"{rig.gpus[a]}-{rig.gpus[b]}"
            rig.say(f"GPU {rig.gpus[a]} to GPU {rig.gpus[b]}")
            target = torch.empty_like(source, device=rig.at(b))
            timed = rig.timed(
                lambda source=source, target=target: target.copy_(source, non_blocking=True),  # type: ignore[misc]
                float(size),
                wait=False,
                seconds=seconds,
                warm_seconds=0.0,
            )
            figures.append(Figure(f"peer {pair}", None, "B/s", *timed, "peer"))
            if rig.kind == "cuda":
                direct[pair] = torch.cuda.can_device_access_peer(a, b)
    return {"figures": to_json(figures), "direct": direct}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge each pair by its kind's reference and by the median pair, and direct access where NVLink is."""
    figures = evidence.figures("peers")
    if not figures:
        return
    yield from judge_figures("peers", figures, evidence, standards, RULES)
    if evidence.device == "cuda":
        yield from _pairs(figures)
        yield from _reachable(evidence, standards)


def _pairs(figures: tuple[Figure, ...]) -> Iterator[Finding]:
    """Report pairs that are slower than the median pair of the node."""
    usual = median(f.rate for f in figures)
    for figure in figures:
        source = "the other pairs of this node"
        finding = by_usual("peers", figure, usual, "the median pair", "peers", source, RULES)
        if finding.verdict != "pass":
            yield finding


def _reachable(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    direct: dict[str, bool] = (evidence.data("peers") or {}).get("direct", {})
    if not direct:
        return
    cut = [pair for pair, ok in direct.items() if not ok]
    gpus = list(evidence.inventory(BEFORE))
    linked = [str(gpu.index) for gpu in gpus if gpu.number("NvLinkState.0") == 1]
    if linked_to_all(gpus, standards):
        bad = bool(cut and linked)
    else:  # a bridge reaches only the card at its other end
        reached = {end for pair, ok in direct.items() if ok for end in pair.split("-")}
        bad = not reached.issuperset(linked)
    yield Question("peers").judged(
        verdict_of(fail=bad),
        f"no direct access: {', '.join(cut)}" if cut else "every GPU reaches every other directly",
        expected="direct access between GPUs with NVLink",
        source="CUDA: cudaDeviceCanAccessPeer",
        advice="look at fabric manager, IOMMU and ACS settings",
    )


CHECK = Check(
    "peers",
    "does every GPU reach every other, and fast?",
    judge,
    measure,
    workers="one",
    least_gpus=2,
    limit_seconds=120,
)

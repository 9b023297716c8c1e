"""Measure all-reduce over message sizes and GPU counts, and read from NCCL's log which algorithm it used.

The expected rate depends on the algorithm: with NVLink SHARP (NVLS) eight H100 reach 480 GB/s of bus
bandwidth, by rings 370. A node whose NVLS is off is not faulty.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.strict_json import to_json
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, memory
from bench.node_check.judging.judge_figures import Tolerances, judge_figures
from bench.node_check.judging.standards import Standards

SIZES = {"quick": (1 << 20, 1 << 30), "standard": (1 << 10, 1 << 20, 1 << 25, 1 << 28, 1 << 30, 1 << 32)}
TINY_SIZES = (1 << 10, 1 << 20)
JUDGED = 1 << 30  # bytes; smaller messages measure latency. Measured at every depth
ADVICE = "look at the NVLink states (check nvlink), the fabric (check fabric) and NCCL's log in the bundle"
RULES = Tolerances(peers_warn=5, peers_fail=10, history_warn=5, advice=ADVICE)
# NCCL numbers its algorithms in this order.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_CHOSEN = re.compile(r"(?:AllReduce: )?(\d+) Bytes -> Algo (\w+) proto (\w+)")


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time all-reduces over 2, 4, 8 and all GPUs; return them with NCCL's algorithm for each size."""
    import torch
    import torch.distributed as dist

    sizes = TINY_SIZES if budget.tiny else SIZES.get(budget.depth, SIZES["standard"])
    counts = sorted({n for n in (2, 4, 8) if n < rig.size} | {rig.size})
    figures = []
    for count in counts:
        group = dist.new_group(list(range(count)))
        for size in sizes:
            rig.wait()
            if rig.rank >= count:
                continue
            rig.say(f"{count} GPUs, {memory(size)}")
            tensor = torch.ones(size // 4, device=rig.device)
            # Least bytes that each GPU sends and receives: github.com/NVIDIA/nccl-tests doc/PERFORMANCE.md
            work = 2.0 * (count - 1) / count * size
            timed = rig.timed(
                lambda tensor=tensor, group=group: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group),  # type: ignore[misc]
                work,
                wait=False,
                group=group,
                # NCCL logs a line a call, so small sizes are measured for a moment only.
                seconds=None if size >= JUDGED else min(budget.seconds, 0.5),
                warm_seconds=None if size >= JUDGED else 0.1,
            )
            figures.append(Figure(f"all-reduce {count} x {memory(size)}", None, "B/s", *timed))
        rig.wait()
    nvls = os.environ.get("NCCL_NVLS_ENABLE")
    return {"figures": to_json(figures), "algorithms": _algorithms(), "nvls": nvls}


def _algorithms() -> dict[str, str]:
    """Read the algorithm of each size from the log that NCCL wrote; empty if there is no log."""
    path = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
    return chosen(Path(path).read_text("utf-8", "replace")) if path and Path(path).exists() else {}


def chosen(log: str) -> dict[str, str]:
    """Parse NCCL's tuning lines: "AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{...}"."""
    algorithms = {}
    for size, algorithm, _ in _CHOSEN.findall(log):
        numbered = algorithm.isdigit() and int(algorithm) < len(_ALGORITHMS)
        algorithms[size] = _ALGORITHMS[int(algorithm)] if numbered else algorithm.upper()
    return algorithms


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Judge messages of JUDGED bytes by the rate of the algorithm that NCCL chose; others are only kept."""
    data = evidence.data("all-reduce")
    if data is None:
        return
    algorithm = data["algorithms"].get(str(JUDGED))
    figures = evidence.figures("all-reduce")
    judged = [f for f in figures if f.name.endswith(memory(JUDGED))] or list(figures[-1:])
    for figure in judged:
        count = figure.name.split()[1]
        # If the log does not name the algorithm, the slower one is expected: a good node must not fail.
        kind = f"all-reduce {algorithm or 'RING'} {count}"
        named = Figure(figure.name, None, figure.unit, figure.work, figure.samples, kind)
        yield from judge_figures("all-reduce", [named], evidence, standards, RULES)
    if evidence.device == "cuda":
        off = " (NVLS switched off by NCCL_NVLS_ENABLE=0)" if data["nvls"] == "0" else ""
        yield Question("all-reduce", "algorithm").judged(
            "pass" if algorithm else "not-run",
            f"NCCL uses {algorithm or 'an algorithm that its log does not name'}{off}",
            expected="known, because the expected rate depends on it",
            source="NCCL's log",
            counts=False,
        )


CHECK = Check(
    "all-reduce",
    "do all GPUs together exchange gradients at the speed of their links?",
    judge,
    measure,
    workers="team",
    collective=True,
    least_gpus=2,
    limit_seconds=180,
    environment={
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": "{logs}/all-reduce-nccl-%p.raw",
    },
)

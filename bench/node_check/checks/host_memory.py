"""Measure the host's memory bandwidth, which the copies of all GPUs and the data loaders share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.base.strict_json import to_json
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.standards import Standards

COPIED_BYTES, TINY_BYTES = 1 << 30, 16 << 20
SLOW = 8e9  # B/s, read and written by all cores: half of what one channel of DDR4 gives


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Time an addition by all cores, which reads each byte once and writes it once."""
    import torch

    size = TINY_BYTES if budget.tiny else COPIED_BYTES
    source = torch.ones(size // 8, dtype=torch.int64)
    target = torch.empty_like(source)
    # torch spreads an addition over all cores; a copy would run in one thread.
    timed = rig.timed(lambda: torch.add(source, 1, out=target), 2.0 * size)
    return {"figures": to_json([Figure("host-memory", None, "B/s", *timed)])}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail a rate below the owner's expectation; without one, warn below half a channel of DDR4."""
    expected = standards.expect.host_gb_per_second
    least = expected * 1e9 if expected else SLOW
    for figure in evidence.figures("host-memory"):
        slow = figure.rate < least
        yield Question("host-memory", "the host", figure=figure.name, unit="B/s").judged(
            verdict_of(fail=expected and slow, warn=slow),
            quantity(figure.rate, "B/s"),
            expected=f"at least {quantity(least, 'B/s')}",
            source="the manifest" if expected else "bench: half a channel of DDR4",
            advice="check that all memory channels are populated and that nothing else uses the memory",
            value=figure.rate,
            reference=least,
        )


CHECK = Check("host-memory", "is the host's memory fast?", judge, measure, blames="node")

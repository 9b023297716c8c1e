"""Sum up a node check in words: the machine, each check's verdict, and how many there are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import VERDICTS, Finding, Verdict

WORDS: dict[Verdict, str] = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "not-run": "NOT-RUN"}


def node_text(results: CheckResults) -> str:
    """Name the GPUs and the driver of a checked node, or its CPU."""
    gpus = results.node.gpus
    names = sorted({gpu.name for gpu in gpus})
    what = f"{len(gpus)} x {' and '.join(names)}, driver {results.node.driver}" if gpus else results.node.cpu
    return f"SIMULATED {what}" if results.simulated else what


def by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Collect the findings of each check, by its name, in the order in which checks were made."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.check, []).append(finding)
    return groups


def verdict_of(findings: Sequence[Finding]) -> str:
    """Return the most serious verdict of one check's findings; "-" if none of them counts."""
    counted = {f.verdict for f in findings if f.counts}
    return next((WORDS[verdict] for verdict in VERDICTS if verdict in counted), "-")


def counted_text(findings: Sequence[Finding]) -> str:
    """Count the checks with each verdict, in words."""
    checks = by_check(findings)
    counts = Counter(map(verdict_of, checks.values()))
    names = {WORDS[verdict]: WORDS[verdict].lower() for verdict in VERDICTS} | {"-": "not possible here"}
    text = ", ".join(f"{counts[word]} {name}" for word, name in names.items() if counts[word])
    return f"{text}, of {len(checks)} checks"

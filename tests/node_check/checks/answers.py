"""The form that every answer of a check must have, whatever it says."""

from __future__ import annotations

from collections.abc import Iterable

from bench.node_check.judging.finding import Finding


def answers(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, after a look at what each must have.

    An answer names its check and its authority, and says what was found and expected. A fault comes with
    advice, a pass without. A missing answer is judged by no authority but bench itself.
    """
    found = list(findings)
    for finding in found:
        said = (finding.subject, finding.found, finding.expected, finding.source)
        assert finding.check == check
        assert all(text.strip() for text in said), finding
        assert finding.verdict not in ("warn", "fail") or finding.advice, finding
        assert finding.verdict != "pass" or not finding.advice, finding
        assert finding.verdict == "not-run" or finding.counts, finding
        assert finding.verdict != "not-run" or (finding.source, finding.basis) == ("bench", "rule"), finding
    return found

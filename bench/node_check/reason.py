"""The reason why a node is out of use, in the form in which a scheduler keeps it. Pure."""

from __future__ import annotations

import re

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import state_of, worst

REASON_BYTES = 120  # schedulers show the beginning of a reason


def reason_of(results: CheckResults) -> str:
    """Return the most serious finding as a short line of ASCII, without characters special to a shell."""
    problem = worst([f for f in results.findings if f.counts])
    text = "passes" if problem is None or state_of(results.verdict) == "pass" else problem.line
    plain = re.sub(r"[^ -~]|[\"'`$\\]", " ", text)
    return " ".join(f"bench: {plain}".split())[:REASON_BYTES].rstrip()

"""The reason why a node is out of use, in the form in which a scheduler keeps it. Pure."""

from __future__ import annotations

import re

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import state_of, worst

REASON_BYTES = 120  # schedulers show the beginning of a reason


def reason_of(results: CheckResults) -> str:
    """Return the most serious finding as a short line of ASCII, without characters special to a shell."""
    if state_of(results.verdict) == "pass":
        text = "passes"
    else:
        problem = worst(results.findings)  # one that counts, if there is any
        text = problem.line if problem else "nothing was judged"
    plain = re.sub(r"[^ -~]|[\"'`$\\]", " ", text)
    return " ".join(f"bench: {plain}".split())[:REASON_BYTES].rstrip()

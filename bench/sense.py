"""What no run can say, whatever it was asked: refused.

A node signs what it likes. What it says is shown as lines of reports, copied into files and divided by.
"""

from __future__ import annotations

import re
from typing import Any

from bench.codec import line_breaks
from bench.errors import VerificationFailed

# What went wrong, in the words of whatever did. Where that is shown, it is shown in one line.
_TOLD_BY_OTHERS = re.compile(
    r"/trials/\d+/(failure|unproven)/(reason|detail|phase)|/skipped/\d+/reason|/run/stopped"
)


def require_lines(document: Any, where: str) -> None:
    """No text of several lines: the second one would pass for a line of ours."""
    for place in line_breaks(document):
        if not _TOLD_BY_OTHERS.fullmatch(place):
            raise VerificationFailed(f"{place or '/'} is a text of several lines", where=where)

"""Colour the marks, verdicts and tables that commands print, if the terminal shows colours. Pure.

A text is laid out first and coloured last, line by line, so that escape sequences count in no width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

BOLD, DIM, RED, GREEN, YELLOW = (f"\x1b[{code}m" for code in (1, 2, 31, 32, 33))
RESET = "\x1b[0m"
WORDS = {
    RED: (
        "WRONG GRADIENTS", "IMPLAUSIBLE", "REFUSED", "FAIL", "NOT REPRODUCED", "DIFFERS", "SIMULATED",
        "out of memory", "out of host memory", "crashed", "timed out", "misses the deadline", "over budget",
    ),
    YELLOW: (
        "SLOWED", "DISTURBED", "SHARED", "LOADED", "UNSTEADY", "INCOMPLETE", "NOT DECIDED", "NOT ALIKE",
        "WARN", "NOT-RUN", "ESTIMATE", "hardly fits", "unsupported", "may miss the deadline",
    ),
    GREEN: ("PASS", "pass", "reproduced", "meets the deadline"),
}  # fmt: skip
_COLOUR_OF = {word: colour for colour, words in WORDS.items() for word in words}
_RULE = re.compile(r"-{2,}( +-{2,})+")  # below the heads of a table
_FIRST = re.compile(r"[*>]   \S")  # the row of the fastest setting, or of the one that is tried first


def wanted(environment: Mapping[str, str], *, terminal: bool) -> bool:
    """Whether to colour output: never under NO_COLOR, always under FORCE_COLOR, else if the terminal can."""
    if environment.get("NO_COLOR"):
        return False
    if forced := environment.get("FORCE_COLOR"):
        return forced not in ("0", "false")
    return terminal and environment.get("TERM", "dumb") not in ("", "dumb")


def painted(text: str) -> str:
    """Colour marks and verdicts, the lines below the heads of tables, and the row of the fastest setting."""
    return "\n".join(map(_painted_line, text.split("\n")))


@cache
def _word() -> re.Pattern[str]:
    """Return the pattern of a word that has a colour, compiled at the first use: few outputs are painted."""
    longest_first = sorted(_COLOUR_OF, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(longest_first)})(?![\w-])")


def _painted_line(line: str) -> str:
    if _RULE.fullmatch(line):
        return f"{DIM}{line}{RESET}"
    if _FIRST.match(line):
        return f"{BOLD}{line}{RESET}"
    return _word().sub(lambda found: f"{_COLOUR_OF[found[0]]}{found[0]}{RESET}", line)

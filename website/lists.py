"""Indent lists as Python-Markdown needs them: everything inside of an item by four spaces.

The forge (CommonMark) asks for the width of the item's mark, two or three spaces in most documents.
"""

from __future__ import annotations

import re

WIDTH = 4
_ITEM = re.compile(r"(?P<mark>(?:[-*+]|\d{1,9}[.)]) +)\S")


def widened(text: str) -> str:
    """Return a document whose lists are indented by four spaces a level; its text is unchanged."""
    lines: list[str] = []
    columns: list[int] = []  # where the text of each open item begins
    fenced = False
    for line in text.split("\n"):
        rest = line.lstrip(" ")
        indent = len(line) - len(rest)
        if not rest:
            lines.append(line)
            continue
        if not fenced:
            continues = bool(lines) and bool(lines[-1]) and not _ITEM.match(rest)
            while columns and indent < columns[-1] and not (continues and indent == 0):
                columns.pop()
        level = columns[-1] if columns and indent >= columns[-1] else 0
        lines.append(" " * (indent + (WIDTH * len(columns) - level if level else 0)) + rest)
        if rest.startswith("```"):
            fenced = not fenced
        elif not fenced and (item := _ITEM.match(rest)) and indent < level + WIDTH:
            columns.append(indent + len(item["mark"]))
    return "\n".join(lines)

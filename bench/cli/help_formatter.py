"""Format the help of commands so that no line is wider than the terminal."""

from __future__ import annotations

import argparse
import re

from bench.base.terminal_width import USUAL_COLUMNS, columns

MARGIN = 2  # columns that argparse leaves free
# A word of a shell's line; blanks between quotes are part of the word.
SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
DEFINED = re.compile(r" *\S+  +(?=\S)")  # the head of a line such as `  2  bad input`


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that keeps lines as they are written, but breaks each one that is wider than the terminal.

    argparse itself leaves an option with many choices, and each part of a usage, on one line of any width.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=(columns() or USUAL_COLUMNS) - MARGIN)

    def _format_usage(self, *arguments: object, **options: object) -> str:
        return self._narrow(super()._format_usage(*arguments, **options))  # type: ignore[arg-type]

    def _format_action(self, action: argparse.Action) -> str:
        return self._narrow(super()._format_action(action))

    def _narrow(self, text: str) -> str:
        lines = text.split("\n")
        return "\n".join(part for line in lines for part in folded(line, self._width, indent_of(line) + 2))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Break the lines of a description or an epilog, in which examples of commands are indented."""
        found: list[str] = []
        for line in text.splitlines():
            if defined := DEFINED.match(line):
                found += folded(line, width, defined.end())
            elif line.startswith("  "):
                found += continued(line, width)
            else:
                found += folded(line, width, 0)
        return "\n".join(found)


def indent_of(line: str) -> int:
    """Count the blanks at the beginning of a line."""
    return len(line) - len(line.lstrip())


def continued(line: str, width: int) -> list[str]:
    """Break a line of a shell between words; a backslash ends each part but the last, so it can be pasted."""
    if len(line) <= width:
        return [line]
    indent = " " * indent_of(line)
    parts: list[str] = []
    for word in SHELL_WORD.findall(line):
        if parts and len(f"{parts[-1]} {word} \\") <= width:
            parts[-1] += f" {word}"
        else:
            parts.append(f"{indent}{'    ' if parts else ''}{word}")
    return [*(f"{part} \\" for part in parts[:-1]), parts[-1]]


def folded(line: str, width: int, indent: int) -> list[str]:
    """Break a line between words, and a word that is wider than a whole line behind its commas and bars."""
    if len(line) <= width:
        return [line]
    found: list[str] = []
    current = ""
    for word in re.findall(r"\s*\S+", line):
        pieces = [word] if len(word.strip()) <= width - indent else re.findall(r"[^,|]+[,|]?|[,|]", word)
        for piece in pieces:
            if current.strip() and len(current + piece) > width:
                found.append(current)
                current = " " * indent + piece.lstrip()
            else:
                current += piece
    return [*found, current]

"""The tasks of README: a question and the commands that answer it, as a stranger reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


@dataclass(frozen=True, slots=True)
class ReadmeTask:
    question: str
    commands: tuple[str, ...]


def tasks() -> tuple[ReadmeTask, ...]:
    """Return each question of the section "Three tasks" with the commands in the block below it."""
    section = README.read_text(encoding="utf-8").partition("\n## Three tasks\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^([^\n`]+\?)\n\n```\n(.*?)```$", section, re.MULTILINE | re.DOTALL)
    return tuple(ReadmeTask(question, tuple(map(_bare, text.splitlines()))) for question, text in blocks)


def _bare(line: str) -> str:
    return line.partition(" #")[0].rstrip()

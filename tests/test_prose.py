"""Docstrings can be read alone, and no text of the project has words that only old English uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("bench", "benchmarks", "docker", "ansible/plugins", "website", "release", "docs")
# A docstring that begins with one of these words has no subject of its own.
WITHOUT_SUBJECT = ("Of ", "The same", "By ", "As ", "With ", "Without ", "Those ", "Whatever ", "Nobody")
# These words point at a name or a line outside of the docstring, or stand for a noun that is not there.
POINTING_OUT = (
    "It ", "Its ", "They ", "Their ", "These ", "Such ", "So ", "Otherwise", "Also ", "Not ",
    "What ", "Which ", "Who ", "Whom ", "Whoever ",
)  # fmt: skip
README_WORDS = 1000

FOLDERS = ("ansible", "bench", "benchmarks", "docker", "docs", "release", "tests", "website")
TEXTS = {".py", ".md", ".sh", ".js", ".yml"}
# Recordings and other people's texts are not the project's own prose.
NOT_PROSE = ("docs/evidence", "tests/vectors")
ARCHAIC = re.compile(
    r"\b(?:lest|thus|hence|wherein|whereby|whereof|thereof|therein|herein|hereby|whilst|amongst|naught|nought"
    r"|anew|whoever|whomever|so many|none but)\b",
    re.IGNORECASE,
)


@cache
def docstrings(folder: str) -> list[tuple[str, str]]:
    """Return the place of each docstring below a folder, and its first line."""
    return [
        (f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}", text.splitlines()[0])
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
    ]


def beginning_with(folder: str, words: tuple[str, ...]) -> list[str]:
    return [f"{place}: {text}" for place, text in docstrings(folder) if text.startswith(words)]


def texts() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            where = path.relative_to(ROOT).as_posix()
            if path.suffix in TEXTS and not where.startswith(NOT_PROSE) and path != Path(__file__):
                yield path


@pytest.mark.parametrize("folder", CODE)
def test_no_docstring_begins_without_a_subject(folder: str) -> None:
    fragments = beginning_with(folder, WITHOUT_SUBJECT)
    assert not fragments, "\n".join(fragments)


@pytest.mark.parametrize("folder", [*CODE, "tests"])
def test_no_docstring_begins_with_a_word_that_points_out_of_it(folder: str) -> None:
    fragments = beginning_with(folder, POINTING_OUT)
    assert not fragments, "\n".join(fragments)


def test_no_text_has_a_word_of_old_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := ARCHAIC.search(line))
    ]
    assert not found, "\n".join(found)


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS

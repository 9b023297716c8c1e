"""Docstrings begin with a subject or a verb of their own, so that they can be read alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "benchmarks", "docker", "ansible/plugins", "website")
# A docstring that begins with one of these words has no subject of its own.
WITHOUT_SUBJECT = ("Of ", "The same", "By ", "As ", "With ", "Without ", "Those ", "Whatever ", "Nobody")
README_WORDS = 1000


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = getattr(node, "name", "the module")
            if (text := ast.get_docstring(node)) is not None:
                yield name, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_without_a_subject(folder: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, text in docstrings(path)
        if text.startswith(WITHOUT_SUBJECT)
    ]
    assert not fragments, "\n".join(fragments)


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS

"""The glossary in bench's docstring is a part of docs/glossary.md."""

from __future__ import annotations

import re
from pathlib import Path

import bench

GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"


def test_each_term_of_the_code_is_in_the_glossary() -> None:
    terms = re.findall(r"^([a-z-]+) +\S", str(bench.__doc__).split("\n\n")[2], re.MULTILINE)
    assert len(terms) == 20
    listed = set(re.findall(r"^\| ([^|]+?) +\|", GLOSSARY.read_text(), re.MULTILINE))
    assert set(terms) <= listed

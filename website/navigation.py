"""The order of the pages: the tables of docs/README.md, then what is made from the code."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput
from website.sources import LISTED, PLACES, ROOT, heading, place_of

CONTENTS = "docs/README.md"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()#\s]+)")
# Sections of docs/README.md that also list pages made from the code.
MADE = {"Reference": ("commands", "schemas"), "Results and decisions": ("gallery",)}


def navigation(made: dict[str, list[str]], root: Path = ROOT) -> list[Any]:
    """Return mkdocs' `nav`; `made` has the pages of each group that is made from the code."""
    text = (root / CONTENTS).read_text(encoding="utf-8")
    _, *parts = SECTION.split(text)
    listed: set[str] = set()
    sections: list[Any] = [{"Home": "index.md"}, {"Documentation": PLACES[CONTENTS]}]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        entries: list[Any] = []
        for target in LINK.findall(body):
            path = posixpath.normpath(posixpath.join("docs", target))
            if path in listed or path in PLACES or not (path.endswith(".md") or path in LISTED):
                continue
            listed.add(path)
            entries.append(_folder(path, root) if path in LISTED else str(place_of(path, root)))
        for group in MADE.get(title, ()):
            has_index = made[group][0].endswith("/index.md")
            entries += [{group.capitalize(): made[group]}] if has_index else made[group]
        sections.append({title: entries})
    _refuse_unlisted(listed, root)
    sections.append({"Project": ["ansible.md", "contributing.md", "changelog.md"]})
    return sections


def _folder(path: str, root: Path) -> Any:
    """Return the entries of a folder with a list of its files: decisions by their titles."""
    index = str(place_of(path, root))
    pages = [
        {heading(page.read_text(encoding="utf-8")): page.relative_to(root / "docs").as_posix()}
        for page in sorted((root / path).glob("*.md"))
    ]
    return {"Decisions" if pages else posixpath.basename(path).capitalize(): [index, *pages]}


def _refuse_unlisted(listed: set[str], root: Path) -> None:
    known = {
        path.relative_to(root).as_posix()
        for folder in ("docs", "docs/guides")
        for path in (root / folder).glob("*.md")
    }
    missing = sorted(known - listed - set(PLACES))
    if missing:
        raise BadInput(
            f"no table lists {', '.join(missing)}", where=CONTENTS, advice="add a row to one of its tables"
        )

"""Lay out everything that mkdocs reads: pages, files, and its configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from website.commands import command_pages
from website.gallery import gallery_pages
from website.navigation import navigation
from website.schemas import schema_pages
from website.sources import LISTED, ROOT, Sources, documents, heading, place_of

ASSETS = Path(__file__).with_name("assets")
CONFIG = Path(__file__).with_name("mkdocs.yml")


def stage(folder: Path, out: Path) -> Path:
    """Fill an empty folder with the sources of the site; return mkdocs' configuration for a site in `out`."""
    pages = folder / "pages"
    # Other files in docs/ keep their places.
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    shutil.copytree(ASSETS, pages / "assets")
    sources = Sources()
    texts = {str(place_of(source)): sources.page(source) for source in documents()}
    made = {
        "commands": command_pages(),
        "schemas": schema_pages(),
        "gallery": gallery_pages(pages) | _folder_pages("docs/pictures"),
    }
    texts |= _folder_pages(*LISTED)
    for place, text in (texts | made["commands"] | made["schemas"] | made["gallery"]).items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        (pages / place).write_text(text, encoding="utf-8")
    sources.copy_linked(pages)
    listed = {group: [place for place in places if place.endswith(".md")] for group, places in made.items()}
    config = {"INHERIT": str(CONFIG), "docs_dir": str(pages), "site_dir": str(out), "nav": navigation(listed)}
    path = folder / "mkdocs.yml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return path


def _folder_pages(*paths: str) -> dict[str, str]:
    return {str(place_of(path)): folder_page(path) for path in paths}


def folder_page(path: str, root: Path = ROOT) -> str:
    """Return the page of a folder: documents by their titles, pictures shown, other files by their names."""
    folder = root / path
    found = [each for each in sorted(folder.rglob("*")) if each.is_file() and "__pycache__" not in each.parts]
    decisions = all(each.suffix == ".md" for each in found)
    lines = [f"# {'Decisions' if decisions else folder.name.capitalize()}", ""]
    for each in found:
        name = each.relative_to(folder).as_posix()
        if each.suffix == ".md":
            lines.append(f"- [{heading(each.read_text(encoding='utf-8'))}]({name})")
        elif each.suffix in (".svg", ".png"):
            lines += [f"## {name}", "", f"![{name}]({name})", ""]
        else:
            lines.append(f"- [{name}]({name})")
    return "\n".join([*lines, ""])

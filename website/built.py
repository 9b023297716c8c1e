"""Find mistakes in a built site: links that lead nowhere, pages that none reaches, use of the network."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

START = "index.html"
UNLINKED = {"404.html"}  # served by a web server in place of a page that is not there
# Attributes that make a browser fetch their address as the page opens.
FETCHED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


@dataclass(slots=True)
class Found(HTMLParser):
    """Links and anchors of one page, filled by `feed`."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is None:
                continue
            if name == "id" or (tag, name) == ("a", "name"):
                self.ids.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
            elif (tag, name) in FETCHED:
                self.fetched.append(value)


def mistakes(site: Path) -> list[str]:
    """Return the mistakes, each with its page."""
    pages = {path.relative_to(site).as_posix(): _read(path) for path in sorted(site.rglob("*.html"))}
    wrong = [
        f"{page}: {said}"
        for page, found in pages.items()
        for said in [*_broken(site, page, found, pages), *_from_the_network(found.fetched)]
    ]
    wrong += [f"{page}: no link leads here" for page in sorted(pages.keys() - _reached(pages) - UNLINKED)]
    for sheet in sorted(site.rglob("*.css")):
        addresses = re.findall(
            r"""(?:url\(|@import)\s*["']?(https?:[^"')\s]+)""", sheet.read_text(encoding="utf-8")
        )
        wrong += [f"{sheet.relative_to(site).as_posix()}: {said}" for said in _from_the_network(addresses)]
    return wrong


def _read(path: Path) -> Found:
    found = Found()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def _broken(site: Path, page: str, found: Found, pages: dict[str, Found]) -> Iterator[str]:
    for address in dict.fromkeys([*found.links, *found.fetched]):
        inside = target(page, address)
        if inside is None:
            continue
        place, anchor = inside
        if not (site / place).is_file():
            yield f"{address} does not exist"
        elif anchor and place in pages and anchor not in pages[place].ids:
            yield f"{address}: there is no such anchor"


def target(page: str, address: str) -> tuple[str, str] | None:
    """Return the file and the anchor to which an address leads from a page; None outside of the site."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path, anchor = unquote(parts.path), unquote(parts.fragment)
    if not path:
        return page, anchor
    if posixpath.basename(path) in ("", ".", ".."):
        path = posixpath.join(path, START)
    place = path.lstrip("/") if path.startswith("/") else posixpath.join(posixpath.dirname(page), path)
    return posixpath.normpath(place), anchor


def _from_the_network(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        if urlsplit(address).netloc:
            yield f"{address} is fetched from the network"


def _reached(pages: dict[str, Found]) -> set[str]:
    """Return the pages to which links lead, one after the other, from the first one."""
    reached: set[str] = set()
    waiting = [START]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in reached:
            reached.add(page)
            waiting += [inside[0] for address in pages[page].links if (inside := target(page, address))]
    return reached

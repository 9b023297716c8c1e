"""HTML and SVG elements that escape their texts, and the page that holds them.

In: names, texts and attributes. Out: `Markup`, the only type that `el` inserts unescaped.
Pure, except for reading the shipped style and script, and for `write_page`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.errors import printable
from bench.base.paths import using
from bench.base.strict_json import canonical_json, to_json

# Elements that are closed in place while they have no children.
SELF_CLOSING = frozenset({"circle", "input", "line", "meta", "path", "polyline", "rect"})
# A page fetches and sends nothing, even if a bundle's texts try to make it do so.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """Text that is HTML or SVG already. Construct it only from text that no bundle can influence."""

    __slots__ = ()


def el(name: str, /, *children: str, **attributes: object) -> Markup:
    """Make an element. Children are escaped unless they are Markup, attribute values always.

    An attribute `class_` is written as class, `data_head` as data-head; None leaves the attribute out.
    """
    start = name + "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in SELF_CLOSING:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>{fragment(*children)}</{name}>")


def fragment(*children: str) -> Markup:
    """Join siblings without an element around them; texts are escaped, as in `el`."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def number(value: float) -> str:
    """Format a coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def _attribute(value: object) -> str:
    return number(value) if isinstance(value, float) else _escaped(str(value))


def _escaped(text: str) -> str:
    """Escape a text for XML; control characters, which XML forbids even if escaped, are spelled out."""
    return escape(printable(text), quote=True)


def items(texts: Iterable[str], class_: str | None = None) -> Markup:
    """Make an unordered list with an item for each text, which is escaped unless it is Markup."""
    return el("ul", *(el("li", text) for text in texts), class_=class_)


def cells(texts: Iterable[str], left: int, name: str = "td") -> list[Markup]:
    """Make the cells of a row; the first `left` of them hold texts, which are aligned to the left."""
    return [el(name, text, class_="t" if i < left else None) for i, text in enumerate(texts)]


def scrolling_table(
    heads: Iterable[Markup], rows: Iterable[Markup], *, class_: str | None = None, label: str | None = None
) -> Markup:
    """Make a table in a box that the keyboard can scroll.

    `label` names the box for screen readers; a hidden caption would be hidden from them, too.
    """
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_=class_)
    role = "region" if label else None
    return el("div", table, class_="scroll", role=role, tabindex=0, aria_label=label)


def document(title: str, *body: Markup, style: str = "") -> Markup:
    """Make a whole page in one file; `style` is CSS that comes after the style of all pages."""
    head = [
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="generator", content=f"bench {__version__}"),
        el("title", title),
        el("style", Markup(asset("style.css") + style)),
    ]
    page = el("html", *_lines(el("head", *_lines(*head)), el("body", *_lines(*body))), lang="en")
    return Markup(f"<!doctype html>\n{page}\n")


def _lines(*blocks: Markup) -> list[Markup]:
    return [Markup(f"\n{block}") for block in blocks] + [Markup("\n")]


def data_block(name: str, value: Any) -> Markup:
    """Make an element that hands a value to scripts. No text in it can end the element."""
    text = canonical_json(to_json(value)).decode().replace("<", "\\u003c")
    return el("script", Markup(text), type="application/json", id=name)


def asset(name: str) -> str:
    """Read a shipped file, the report's style or its script."""
    return (files("bench.data") / "report" / name).read_text(encoding="utf-8")


def write_page(path: Path, page: Markup) -> None:
    """Write a page to a file; folders that do not exist are created."""
    with using(path, "the report cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        # backslashreplace: file names need not be UTF-8
        path.write_text(page, encoding="utf-8", errors="backslashreplace", newline="\n")

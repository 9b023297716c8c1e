"""Parts of pages whose tables the script of the report sorts and filters. Pure."""

from __future__ import annotations

from bench.report.markup import Markup, el
from bench.report.plots.svg import Plot, inline

WIDE = 760  # pixels; a wider plot takes a whole row


def tools(example: str) -> Markup:
    """Make the row of tools that the script shows: a filter with an example of words, and the theme."""
    search = el("input", id="filter", type="search", placeholder=example)
    return el(
        "div",
        el("label", "Show only rows with ", search),
        el("span", id="shown", role="status"),
        el("button", "Light / dark", id="theme", type="button"),
        class_="tools",
        hidden="",
    )


def sorting_head(text: str, class_: str | None) -> Markup:
    """Make the head of a column, a button that sorts by it."""
    return el("th", el("button", text, type="button"), scope="col", class_=class_)


def figure(plot: Plot, *, whole_row: bool = False) -> Markup:
    wide = "wide" if whole_row or plot.width > WIDE else None
    return el("figure", el("figcaption", plot.title), inline(plot), class_=wide)

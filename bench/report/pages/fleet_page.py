"""A fleet of checked nodes as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.node_check.fleet import Fleet, RankedNode
from bench.report.markup import Markup, cells, document, el, fragment, items, scrolling_table, write_page
from bench.report.pages.check_html import STYLE, TONES
from bench.report.text.fleet_text import (
    LEVEL,
    SIMULATED,
    SPREAD_HEADS,
    columns_of,
    counts_text,
    is_simulated,
    level_of,
    spread_texts,
    verdict_words,
    worst_finding_text,
)


def write_fleet_html(path: Path, fleet: Fleet) -> None:
    """Write the page; unlike the table it has every node."""
    write_page(path, document(f"bench: {len(fleet.nodes)} nodes", *_body(fleet), style=STYLE))


def _body(fleet: Fleet) -> Iterator[Markup]:
    """Yield the answer, how many nodes are good and which; then the data behind the answer."""
    yield el("h1", "Which of these nodes are good")
    yield el("p", el("strong", counts_text(fleet)))
    if is_simulated(fleet):
        yield el("p", f"SIMULATED: {SIMULATED}", class_="alert")
    lemons, heads = {lemon.uuid for lemon in fleet.lemons}, (*columns_of(fleet), "GPU", "checked")
    in_words = verdict_words(fleet)
    nodes = (_node_row(node, in_words(node), lemons, with_level=LEVEL in heads) for node in fleet.nodes)
    yield scrolling_table(cells(heads, len(heads), "th"), nodes, class_="stacked")
    if fleet.lemons:
        yield el("h2", "Repeat lemons")
        yield items((fragment(lemon.uuid, items(lemon.times)) for lemon in fleet.lemons), class_="said")
    if fleet.spreads:
        yield el("h2", "The fleet")
        rows = (el("tr", *cells(spread_texts(spread), 2)) for spread in fleet.spreads)
        yield scrolling_table(cells(("GPU", *SPREAD_HEADS), 2, "th"), rows)
    if fleet.older:
        summary = f"{len(fleet.older)} older: the same GPUs were checked again"
        yield el("details", el("summary", summary), items(fleet.older, class_="said"))


def _node_row(node: RankedNode, verdict: str, lemons: set[str], *, with_level: bool) -> Markup:
    level = [el("td", level_of(node), class_="t", data_head=LEVEL)] if with_level else []
    return el(
        "tr",
        el("td", node.seen.name, class_="t"),
        el("td", verdict, class_=f"t {TONES[node.verdict]}"),
        el("td", worst_finding_text(node, lemons), class_="t long", data_head="worst finding"),
        *level,
        el("td", node.seen.kind, class_="t", data_head="GPU"),
        el("td", node.seen.started_at, class_="t", data_head="checked"),
    )

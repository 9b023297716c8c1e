"""The report: one file that needs no network, light and dark, whole without its script.

Numbers are formatted by bench.report.text.comparison_table, as in the table. The page also holds the whole
comparison as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

from bench import __version__
from bench.base.strict_json import canonical_json, to_json
from bench.records.text import count_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.pages.page_frame import asset, put
from bench.report.pages.page_frame import page as document
from bench.report.plots import model_plots
from bench.report.plots.svg import Plot, inline
from bench.report.plots.telemetry import plots as telemetry_plots
from bench.report.text.comparison_table import (
    HEADERS,
    OFFER_ALIGN,
    OFFER_HEADERS,
    TEXT_COLUMNS,
    asked,
    called,
    cells,
    notes,
    offers,
    remarks,
)

# Who has the report alone has not read the documents.
COLUMNS = (
    "days: of the whole training that the model's recipe asks for, from minutes of it that were timed",
    "batch: samples of a GPU's pass x passes of a step (x GPUs)",
    "of limit: the model's own arithmetic over the best rate of plain matrix products on the same machine",
    "memory: the most that a GPU held",
    "level: self, whole and in agreement with itself; operator, also an answer to the demand of whose key"
    " certified it. Neither proves that the machine told the truth",
)
OFFERS_HEARD = ("buy or rent", "", "", "", "", "what that comes to")  # heads that nobody has to see
WIDE = 760  # pixels, past which a plot has the whole row


def write_html(path: Path, comparison: Comparison) -> None:
    put(path, page(comparison))


def page(comparison: Comparison) -> str:
    body = "\n".join(
        [
            _head(comparison),
            *(_section(part, comparison) for part in comparison.parts),
            _courses(comparison),
            _notes(comparison),
        ]
    )
    scripts = (
        f'<script type="application/json" id="comparison">{_json(comparison)}</script>\n'
        f"<script>{asset('script.js')}</script>"
    )
    models, bundles = count_text(len(comparison.parts), "model"), count_text(comparison.bundles, "bundle")
    return document(f"bench: {models}, {bundles}", f"{body}\n{scripts}")


def _json(comparison: Comparison) -> str:
    """Without the telemetry, which the plots show; no text in it can end the element."""
    parts = tuple(
        replace(
            part,
            entries=tuple(replace(e, row=replace(e.row, telemetry=None)) for e in part.entries),
            apart=tuple(replace(a, row=replace(a.row, telemetry=None)) for a in part.apart),
        )
        for part in comparison.parts
    )
    return canonical_json(to_json(replace(comparison, parts=parts))).decode().replace("<", "\\u003c")


def _head(comparison: Comparison) -> str:
    links = "".join(f'<a href="#{escape(p.model)}">{escape(p.model)}</a>' for p in comparison.parts)
    ranked = sum(len(part.entries) for part in comparison.parts)
    aside = sum(len(part.apart) for part in comparison.parts)
    bundles, rows = count_text(comparison.bundles, "bundle"), count_text(ranked, "row")
    counted = f"{bundles}, {rows} ranked, {aside} not compared"
    return f"""<header>
<h1>Which machine, at what cost</h1>
<p class="muted">{counted}. Every bundle was verified before it was read. Made by bench {__version__}.</p>
{_asked(comparison)}{_refused(comparison)}
<nav aria-label="models">{links}</nav>
<div class="tools" hidden>
<label>Show only rows with <input id="filter" type="search" placeholder="h200 zero"></label>
<span id="shown" role="status"></span><button id="theme" type="button">Light / dark</button>
</div>
</header>"""


def _asked(comparison: Comparison) -> str:
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in asked(comparison))


def _refused(comparison: Comparison) -> str:
    if not comparison.refused:
        return ""
    rows = "".join(f"<li>{escape(one.reason)}</li>" for one in comparison.refused)
    words = f"{count_text(len(comparison.refused), 'file')} left out"
    return f'<div class="alert" role="alert"><strong>{words}:</strong><ul>{rows}</ul></div>'


def _section(part: ModelPart, comparison: Comparison) -> str:
    blocks = [f'<section id="{escape(part.model)}"><h2>{escape(part.model)}</h2>']
    if part.entries:
        blocks.append(_table(part))
    if found := offers(part, comparison):
        blocks.append(_offers(part, found))
    if said := remarks(part, comparison):
        items = "".join(f"<li>{escape(line)}</li>" for line in said)
        blocks.append(f'<ul class="said">{items}</ul>')
    if plots := list(model_plots(part, comparison)):
        blocks.append(f'<div class="plots">{"".join(map(_figure, plots))}</div>')
    return "\n".join([*blocks, "</section>"])


def _offers(part: ModelPart, found: list[tuple[tuple[str, ...], bool]]) -> str:
    of = [number for number, entry in enumerate(part.entries) for _ in entry.offers]
    rows = "".join(
        f'<tr data-of="{number}"{" class=chosen" * chosen}>{"".join(_offer_cells(texts))}</tr>'
        for number, (texts, chosen) in zip(of, found, strict=True)
    )
    heads = "".join(
        f'<th scope="col"{_side(align)}>{head or f"<span class=heard>{heard}</span>"}</th>'
        for head, heard, align in zip(OFFER_HEADERS, OFFERS_HEARD, OFFER_ALIGN, strict=True)
    )
    return (
        f'{_scroll(f"{part.model}: to buy and to rent")}<table class="offers stacked">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _offer_cells(texts: tuple[str, ...]) -> Iterator[str]:
    for cell, head, align in zip(texts, OFFER_HEADERS, OFFER_ALIGN, strict=True):
        yield f"<td{_side(align)}{_head_of(head)}>{escape(cell)}</td>"


def _head_of(head: str) -> str:
    """What stands before the cell on a phone, where a row is a block."""
    return f' data-head="{escape(head)}"' if head else ""


def _side(align: str) -> str:
    return ' class="t"' if align == "left" else ""


def _figure(plot: Plot) -> str:
    wide = ' class="wide"' if plot.width > WIDE else ""
    return f"<figure{wide}><figcaption>{escape(plot.title)}</figcaption>{inline(plot)}</figure>"


def _scroll(name: str) -> str:
    """What the keyboard scrolls has a name: a caption that is hidden is hidden from screen readers, too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">'


def _table(part: ModelPart) -> str:
    every = list(zip(part.entries, map(cells, part.entries, called(part)), strict=True))
    names = [name for name in HEADERS if any(texts[name] for _, texts in every)]
    heads = "".join(
        f'<th scope="col"{_left(name)}><button type="button">{escape(HEADERS[name] or name)}</button></th>'
        for name in names
    )
    rows = "".join(
        f'<tr data-entry="{number}">{"".join(_row(entry, texts, names))}</tr>'
        for number, (entry, texts) in enumerate(every)
    )
    return (
        f'{_scroll(f"{part.model}: machines by days")}<table class="ranked stacked">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(entry: Entry, texts: dict[str, str], names: list[str]) -> Iterator[str]:
    exact = _exact(entry)
    for name in names:
        value = f' data-v="{exact[name]!r}"' if exact.get(name) is not None else ""
        yield f"<td{_left(name)}{value}{_head_of(HEADERS[name] or name)}>{escape(texts[name])}</td>"


def _left(name: str) -> str:
    return f' class="{"t long" if name == "note" else "t"}"' if name in TEXT_COLUMNS else ""


def _exact(entry: Entry) -> dict[str, float | None]:
    """What a column is sorted by: the number behind its text."""
    best = entry.row.best
    assert best is not None
    assert best.days is not None
    return {
        "rank": entry.place.rank,
        "days": best.days.value,
        "slower": entry.place.slower.value if entry.place.slower else 1.0,
        "batch": best.micro_batch,
        "limit": best.utilisation,
        "memory": best.peak_bytes,
        "kwh": entry.kwh,
    }


def _courses(comparison: Comparison) -> str:
    plots = list(telemetry_plots(comparison))
    if not plots:
        return ""
    shown = "".join(
        f"<details><summary>{escape(plot.title)}</summary>{inline(plot)}</details>" for plot in plots
    )
    return f'<section id="runs"><h2>The runs themselves</h2>{shown}</section>'


def _notes(comparison: Comparison) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in [*COLUMNS, *notes(comparison)])
    return f'<section id="notes"><h2>How to read this</h2><ul>{items}</ul></section>'

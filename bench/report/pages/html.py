"""The report: a comparison as one HTML file that needs no network.

In: a Comparison. Out: a page for light and dark screens, for phones and paper, complete without its script.
It begins with the answer, as the table does. Numbers are formatted by `bench.report.text`, as in the table.
The page also holds the whole comparison as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import __version__
from bench.base.strict_json import to_json
from bench.base.terminal import Column
from bench.records.text import count_text
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.markup import (
    Markup,
    asset,
    data_block,
    document,
    el,
    fragment,
    items,
    scrolling_table,
    write_page,
)
from bench.report.pages.answer_section import answer_section, main_plot
from bench.report.pages.page_parts import sorting_head, tools
from bench.report.pages.what_if import what_if
from bench.report.plots import MACHINE_PLOTS, SETTING_PLOTS, model_plots
from bench.report.plots.svg import Plot, figure, inline
from bench.report.plots.telemetry import plots as telemetry_plots
from bench.report.plots.timeline import plots as timeline_plots
from bench.report.text.answer_text import capital, own_answer
from bench.report.text.machine_rows import (
    HEADERS,
    OFFER_COLUMNS,
    TEXT_COLUMNS,
    machine_rows,
    offers,
)
from bench.report.text.remarks import ABOUT, multiplied_lines, notes, remarks

# The columns explained, for a reader who has the report but not the documentation.
COLUMNS = (
    "days: of the whole training that the model's recipe asks for, from the minutes that were timed",
    "batch: micro-batch of a GPU x passes in a step (x GPUs)",
    "of limit: the model's own arithmetic, over the best rate of plain matrix products on the same machine",
    "memory: the most that any GPU held",
    "level: self, the bundle is complete and consistent in itself; operator, it also answers a challenge of"
    " the operator whose key certified it. Neither proves that the machine reported the truth",
)
OFFER_HEADS_SPOKEN = ("buy or rent", *[""] * 6, "what it comes to")  # for screen readers; else not shown
# Fields of an attempt that the page's JSON leaves out.
USUAL = {
    "outcome": "measured",
    "reason": None,
    "mfu": None,
    "share_of_floor": None,
    "no_gradient_check": None,
}
MOST_LINKS = 12  # to models, shown unfolded


def write_html(path: Path, comparison: Comparison) -> None:
    """Write the report; EnvironmentCannot if the file cannot be written."""
    write_page(path, page(comparison))


def page(comparison: Comparison) -> Markup:
    """Make the whole report."""
    first = main_plot(comparison)
    blocks = [
        el("header", el("h1", "Which machine, at what cost"), _refused(comparison)),
        el(
            "main",
            answer_section(comparison, _counts(comparison), first),
            what_if(comparison),
            _ways(comparison),
            *(_section(part, comparison, first) for part in comparison.parts),
            _settings(comparison),
            _courses(comparison),
            _measured_with(comparison),
            _notes(comparison),
        ),
        data_block("comparison", _json(comparison)),
        el("script", Markup(asset("script.js"))),
    ]
    models = count_text(len({part.model for part in comparison.parts}), "model")
    bundles = count_text(comparison.bundles, "bundle")
    return document(f"bench: {models}, {bundles}", *blocks)


def _json(comparison: Comparison) -> Any:
    """Return the comparison as JSON, without telemetry, which plots show.

    Attempts leave out what most of them share: a page may hold thousands of attempts.
    """
    whole = to_json(comparison)
    for part in whole["parts"]:
        for each in (*part["entries"], *part["apart"]):
            each["row"]["telemetry"] = None
            for attempt in each["row"]["attempts"]:
                for field, usual in USUAL.items():
                    if attempt[field] == usual:
                        del attempt[field]
    return whole


def _counts(comparison: Comparison) -> str:
    ranked = sum(len(part.entries) for part in comparison.parts)
    apart = sum(len(part.apart) for part in comparison.parts)
    bundles, rows = count_text(comparison.bundles, "bundle"), count_text(ranked, "row")
    counts = f"{bundles}, {rows} ranked, {apart} not compared"
    return f"{counts}. Every bundle was verified before it was read. Made by bench {__version__}."


def _ways(comparison: Comparison) -> Markup:
    """Make the search, and the links to the models, which are folded if there are many."""
    links = [el("a", part.title, href=f"#{part.name}") for part in comparison.parts]
    nav = el("nav", *links, aria_label="models")
    if len(links) > MOST_LINKS:
        nav = el("details", el("summary", f"{len(links)} models and groups"), nav)
    return fragment(nav, tools("h200 zero"))


def _refused(comparison: Comparison) -> Markup:
    if not comparison.refused:
        return fragment()
    heading = el("strong", f"{count_text(len(comparison.refused), 'file')} left out:")
    reasons = items(refused.reason for refused in comparison.refused)
    return el("div", heading, reasons, class_="alert", role="alert")


def _section(part: ModelPart, comparison: Comparison, first: Plot | None) -> Markup:
    """Make a model's section, without the plot that is at the beginning of the page."""
    blocks = [el("h2", part.title), *(el("p", text) for text in own_answer(part, comparison))]
    if part.entries or part.guesses:
        blocks.append(_table(part))
    if rows := offers(part, comparison):
        blocks.append(_offers(part, rows))
    if lines := list(remarks(part, comparison)):
        summary = el("summary", f"{capital(ABOUT)} ({len(lines)})")
        blocks.append(el("details", summary, items(lines, class_="said"), class_="about"))
    if lines := list(multiplied_lines(part)):
        summary = el("summary", "What a pass multiplies in which precision")
        blocks.append(el("details", summary, items(lines, class_="said"), class_="about"))
    shown = [one for one in model_plots(part, comparison, MACHINE_PLOTS) if one != first]
    if shown:
        blocks.append(el("div", *map(figure, shown), class_="plots"))
    return el("section", *blocks, id=part.name)


def _offers(part: ModelPart, rows: list[tuple[tuple[str, ...], bool]]) -> Markup:
    counts = [*(len(entry.offers) for entry in part.entries), *(len(guess.offers) for guess in part.guesses)]
    of_machine = [machine for machine, count in enumerate(counts) for _ in range(count)]
    heads = (
        el("th", column.head or el("span", spoken, class_="heard"), scope="col", class_=_side(column))
        for column, spoken in zip(OFFER_COLUMNS, OFFER_HEADS_SPOKEN, strict=True)
    )
    body = (
        el("tr", *_offer_cells(texts), data_of=number, class_="chosen" if chosen else None)
        for number, (texts, chosen) in zip(of_machine, rows, strict=True)
    )
    return scrolling_table(heads, body, class_="offers stacked", label=f"{part.title}: to buy and to rent")


def _offer_cells(texts: tuple[str, ...]) -> Iterator[Markup]:
    """Yield the cells of an offer; on a phone, where a row is a block, `data-head` precedes each cell."""
    for cell, column in zip(texts, OFFER_COLUMNS, strict=True):
        yield el("td", cell, class_=_side(column), data_head=column.head or None)


def _side(column: Column) -> str | None:
    return None if column.right else "t"


def _table(part: ModelPart) -> Markup:
    every = machine_rows(part)
    names = [name for name in HEADERS if any(texts[name] for texts in every)]
    guessed: list[dict[str, float | None]] = [{"days": g.days or g.at_peak_days} for g in part.guesses]
    exact = [*map(_exact, part.entries), *guessed]
    heads = (sorting_head(HEADERS[name] or name, _class_of(name)) for name in names)
    rows = (
        el("tr", *_row(numbers, texts, names), data_entry=n, class_="est" if n >= len(part.entries) else None)
        for n, (numbers, texts) in enumerate(zip(exact, every, strict=True))
    )
    return scrolling_table(heads, rows, class_="ranked stacked", label=f"{part.title}: machines by days")


def _row(exact: Mapping[str, float | None], texts: dict[str, str], names: list[str]) -> Iterator[Markup]:
    for name in names:
        value = None if exact.get(name) is None else repr(exact[name])
        yield el("td", texts[name], class_=_class_of(name), data_v=value, data_head=HEADERS[name] or name)


def _class_of(name: str) -> str | None:
    if name not in TEXT_COLUMNS:
        return None
    return "t long" if name == "note" else "t"


def _exact(entry: Entry) -> dict[str, float | None]:
    """Return the numbers of an entry's columns, by which the script sorts."""
    best = entry.row.best
    return {
        "rank": entry.place.rank,
        "days": best.days.value,
        "slower": entry.place.slower.value if entry.place.slower else 1.0,
        "batch": best.micro_batch,
        "limit": best.utilisation,
        "floor": best.share_of_floor,
        "mfu": best.mfu,
        "memory": best.peak_bytes,
        "kwh": entry.kwh,
        "node_kwh": entry.node_kwh,
        "co2": entry.co2_kg,
    }


def _settings(comparison: Comparison) -> Markup:
    """Show the plots of all settings that were tried, of each model below its name."""
    drawn = [(part, list(model_plots(part, comparison, SETTING_PLOTS))) for part in comparison.parts]
    blocks = [
        el("details", el("summary", part.title), el("div", *map(figure, plots), class_="plots"), open=opened)
        for part, plots in drawn
        if plots
        for opened in ["" if len(comparison.parts) == 1 else None]
    ]
    if not blocks:
        return fragment()
    return el("section", el("h2", "The settings that were tried"), *blocks, id="settings")


def _courses(comparison: Comparison) -> Markup:
    """Show each run's time line, and the course of its GPUs; both open if there is only one run."""
    plots = [*timeline_plots(comparison), *telemetry_plots(comparison)]
    if not plots:
        return fragment()
    opened = "" if len({run for plot in plots for run in plot.runs}) == 1 else None
    details = (el("details", el("summary", plot.title), inline(plot), open=opened) for plot in plots)
    return el("section", el("h2", "The runs themselves"), *details, id="runs")


RUN_HEADS = ("runs", "machine", "measured on", "driver", "torch", "image", "stack", "by")


def _measured_with(comparison: Comparison) -> Markup:
    """Show models, machine, time and software of the runs; runs that are alike share a row."""
    rows = {row.run_id: row for part in comparison.parts for row in part.rows}
    if not rows:
        return fragment()
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for row in sorted(rows.values(), key=lambda row: (row.started_at, row.run_id)):
        alike.setdefault(_measured_by(row), []).append(row.run_id)
    body = (el("tr", *_run_cells((", ".join(runs), *used))) for used, runs in alike.items())
    heads = (el("th", head, scope="col", class_="t") for head in RUN_HEADS)
    table = scrolling_table(heads, body, class_="stacked", label="the software of each run")
    return el("section", el("h2", "What each run was measured with"), table, id="software")


def _measured_by(row: Row) -> tuple[str | None, ...]:
    used = row.software
    image = (used.image or "none").removeprefix("sha256:")[:24]
    day = row.started_at.partition("T")[0]
    return row.machine.label, day, used.driver, used.torch, image, used.stack, used.bench


def _run_cells(texts: tuple[str | None, ...]) -> Iterator[Markup]:
    for head, cell in zip(RUN_HEADS, texts, strict=True):
        long = head in ("runs", "by")
        yield el("td", cell or "unknown", class_="t long" if long else "t", data_head=head)


def _notes(comparison: Comparison) -> Markup:
    lines = items([*COLUMNS, *notes(comparison)])
    return el("section", el("h2", "How to read this"), lines, id="notes")

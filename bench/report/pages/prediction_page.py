"""Predictions as one HTML page that needs no network: days against costs and a table, for each model. Pure.

Predicted machines are hollow in the picture and stand in the table; measured ones are filled, in the picture
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import __version__
from bench.base.sizes import bytes_text
from bench.planning.prediction.predicted_machines import Unpredicted
from bench.records.text import count_text, figures, money_text
from bench.report.compare.comparison import Comparison
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.priced_predictions import PricedPrediction, RunCost, machine_text
from bench.report.markup import Markup, asset, document, el, fragment, items, scrolling_table
from bench.report.pages.page_parts import sorting_head, tools
from bench.report.plots.predictions import prediction_plots
from bench.report.plots.svg import figure
from bench.report.text.prediction_table import by_days, caveats, nothing_fits, reasons_of

COLUMNS = (
    "90% within: of predictions for models and cards that were left out of the fit",
    "limit: what takes most of the time of a pass",
    "setting: the one that is predicted to be the fastest, with micro-batch x accumulation",
    "cost of a run: of the rent for its hours; on an own machine, its share of the costs over the life",
    "kWh: at the power limit of the GPUs, which is more than they draw",
)
LEFT = ("machine", "90% within", "limit", "setting")  # columns of texts


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell of the table, and the number by which its column is sorted."""

    head: str
    text: str
    value: float | None = None


def prediction_page(
    models: Sequence[str],
    rows: Sequence[PricedPrediction],
    without: Sequence[Unpredicted],
    currency: str,
    measured: Comparison | None,
    energy: EnergyFactors,
    outside: Sequence[PricedPrediction],
    *,
    own: bool,
) -> Markup:
    """Make the page: for each model a picture and a table, then reasons and quotes.

    `outside` are rows that miss the deadline or the budget: the fastest is named where no other row is left,
    with what it costs to rent or, if `own` is true, to own.
    """
    plots = {plot.name: plot for plot in prediction_plots(rows, currency, measured)}
    names = [*dict.fromkeys(models)]
    sections = []
    for number, name in enumerate(names):
        blocks = [el("h2", name)]
        if plot := plots.get(f"{name}-predicted"):
            blocks.append(el("div", figure(plot, whole_row=True), class_="plots"))
        if of_model := by_days(name, rows):
            blocks.append(_table(of_model, currency, energy))
        else:
            blocks.append(el("p", nothing_fits(by_days(name, outside), currency, own=own)))
        if lines := list(reasons_of(name, without)):
            blocks.append(items((f"not predicted: {line}" for line in lines), class_="said"))
        sections.append(el("section", *blocks, id=f"model-{number}"))
    return document(
        f"bench: predictions for {count_text(len(names), 'model')}",
        _head(names, len(rows)),
        *sections,
        _quotes(rows),
        el(
            "section",
            el("h2", "How to read this"),
            items([*caveats(rows), *COLUMNS, *energy.texts]),
            id="notes",
        ),
        el("script", Markup(asset("script.js"))),
    )


def _head(models: Sequence[str], rows: int) -> Markup:
    links = (el("a", name, href=f"#model-{number}") for number, name in enumerate(models))
    said = f"{count_text(rows, 'prediction')}, none of them measured. Made by bench {__version__}."
    return el(
        "header",
        el("h1", "What training would take, and what it would cost"),
        el("p", said, class_="muted"),
        el("nav", *links, aria_label="models"),
        tools("8x h200"),
    )


def _table(rows: Sequence[PricedPrediction], currency: str, energy: EnergyFactors) -> Markup:
    lines = [list(_cells(row, currency, energy)) for row in rows]
    heads = (sorting_head(cell.head, _class_of(cell)) for cell in lines[0])
    body = (el("tr", *map(_cell, line)) for line in lines)
    name = rows[0].predicted.model
    return scrolling_table(heads, body, class_="ranked stacked", label=f"{name}: predicted machines by days")


def _cell(cell: ShownCell) -> Markup:
    value = None if cell.value is None else repr(cell.value)
    return el("td", cell.text, class_=_class_of(cell), data_v=value, data_head=cell.head)


def _class_of(cell: ShownCell) -> str | None:
    return "t" if cell.head in LEFT else None


def _cells(row: PricedPrediction, currency: str, energy: EnergyFactors) -> Iterator[ShownCell]:
    found = row.predicted
    yield ShownCell("machine", machine_text(found))
    yield ShownCell("days", figures(found.days), found.days)
    yield ShownCell("90% within", f"{figures(found.least_days)} to {figures(found.most_days)}", found.days)
    yield ShownCell("limit", found.limit)
    yield _cost("a rented run", row.rented, currency)
    yield _cost("an owned run", row.owned, currency)
    paid = row.units_per_dollar
    yield ShownCell(f"per {currency} of rent", "" if paid is None else f"{figures(paid / 1e6)} million", paid)
    yield _number("kWh", found.kwh)
    if energy.node_overhead is not None:
        yield _number("node kWh", row.node_kwh)
    if energy.grams_co2_per_kwh is not None:
        yield _number("kg CO2", row.co2_kg)
    yield ShownCell("memory", bytes_text(found.memory_bytes), found.memory_bytes)
    yield ShownCell("setting", f"{found.label}, {found.micro_batch} x {found.accumulation}")


def _number(head: str, value: float | None) -> ShownCell:
    return ShownCell(head, "" if value is None else figures(value), value)


def _cost(head: str, cost: RunCost | None, currency: str) -> ShownCell:
    if cost is None:
        return ShownCell(head, "")
    return ShownCell(head, money_text(cost.amount, currency), cost.amount)


def _quotes(rows: Sequence[PricedPrediction]) -> Markup:
    """List the quotes behind all costs, each with its source and day."""
    costs = [cost for row in rows for cost in (row.rented, row.owned) if cost is not None]
    quotes = dict.fromkeys(quote for cost in costs for quote in cost.quotes)
    if not quotes:
        return fragment()
    return el("section", el("h2", "Prices"), items(quotes), id="prices")

"""Plot days against money: the price of each machine, and the cost of each run."""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.text import currency_sign, interval_text, money_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.offers import Offer
from bench.report.plots.scatter import Point, days_plot
from bench.report.plots.svg import Plot

SIZE = (700, 360)


def plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    every = [(entry, offer) for entry in part.entries for offer in entry.offers]
    bought = [(entry, offer, offer.price) for entry, offer in every if offer.kind == "buy"]
    runs = [(entry, offer, offer.run_cost) for entry, offer in every]
    yield from _plot(part, "price", "price of the machine", bought, comparison.currency)
    yield from _plot(part, "run-cost", "cost of a run", runs, comparison.currency)


def _plot(
    part: ModelPart, name: str, words: str, costs: list[tuple[Entry, Offer, float]], currency: str
) -> Iterator[Plot]:
    """Yield one plot, if there is more than one cost."""
    if len(costs) > 1:
        points = [_point(*cost, currency) for cost in costs]
        descriptions = [f"{p.label} {p.words}" for p in points]
        title, x_title = f"{part.title}: days against the {words}", f"{words}, {currency}"
        runs = [entry.row.run_id for entry, *_ in costs]
        of_plot = f"{part.name}-{name}", title, x_title, points, descriptions, SIZE, runs
        yield days_plot(*of_plot, x_unit=currency_sign(currency))


def _point(entry: Entry, offer: Offer, cost: float, currency: str) -> Point:
    row, days = entry.row, entry.days
    price = money_text(cost, currency)
    words = f"{row.machine.label}, {offer.kind}: {interval_text(days)} days, {price}"
    series = f"{offer.kind} {row.machine.name.removeprefix('NVIDIA ')}"
    return Point(cost, days.value, series, row.machine.label, words, half_width=days.half_width)

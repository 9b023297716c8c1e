"""Plot days against money: the price of each machine, and the cost of each run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.records.text import interval_text, money_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.offers import Offer
from bench.report.markup import fragment
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot

WIDTH, HEIGHT = 700, 360
BOX = Box(64, 36, 470, 300)


def plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    bought = [(e, o) for e in part.entries for o in e.offers if o.kind == "buy"]
    every = [(e, o) for e in part.entries for o in e.offers]
    currency = comparison.currency
    if len(bought) > 1:
        yield _plot(
            f"{part.model}-price",
            f"{part.model}: days against the price of the machine",
            f"price of the machine, {currency}",
            [_point(entry, offer, offer.price, currency) for entry, offer in bought],
            currency,
        )
    if len(every) > 1:
        yield _plot(
            f"{part.model}-run-cost",
            f"{part.model}: days against the cost of a run",
            f"cost of a run, {currency}",
            [_point(entry, offer, offer.run_cost, currency) for entry, offer in every],
            currency,
        )


def _plot(name: str, title: str, x_title: str, points: list[Point], currency: str) -> Plot:
    money = partial(money_text, currency=currency)
    spread = max(p.y for p in points) / min(p.y for p in points)
    names = list(dict.fromkeys(p.series for p in points))
    drawing = scatter(points, BOX, x_title, "days", log_y=spread > 8, x_text=money)
    legend = key(names, 496, 48, "nothing beats these" if len(points) > 1 else None)
    description = "; ".join(f"{p.label} {p.words}" for p in points[:12])
    return Plot(name, title, description, WIDTH, HEIGHT, fragment(drawing, legend))


def _point(entry: Entry, offer: Offer, cost: float, currency: str) -> Point:
    row, days = entry.row, entry.row.best.days
    price = money_text(cost, currency)
    words = f"{row.machine.label}, {offer.kind}: {interval_text(days)} days, {price}"
    series = f"{offer.kind} {row.machine.name.removeprefix('NVIDIA ')}"
    return Point(cost, days.value, series, row.machine.label, words, half_width=days.half_width)

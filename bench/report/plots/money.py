"""Days against dollars: machines by their price, and runs by their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench.records.text import interval_text, money_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.offers import Offer
from bench.report.plots.scatter import Point, key, scatter
from bench.report.plots.svg import Box, Plot

WIDTH, HEIGHT = 700, 360
BOX = Box(64, 36, 470, 300)


def plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    bought = [(e, o) for e in part.entries for o in e.offers if o.kind == "buy"]
    every = [(e, o) for e in part.entries for o in e.offers]
    if len(bought) > 1:
        yield _plot(
            f"{part.model}-price", f"{part.model}: days against the price of the machine",
            "price of the machine", bought, lambda o: o.price, comparison,
        )  # fmt: skip
    if len(every) > 1:
        yield _plot(
            f"{part.model}-run-cost", f"{part.model}: days against the cost of a run",
            "cost of a run", every, lambda o: o.run_cost, comparison,
        )  # fmt: skip


def _plot(
    name: str, title: str, x_title: str, pairs: list[tuple[Entry, Offer]], cost: Callable[[Offer], float],
    comparison: Comparison,
) -> Plot:  # fmt: skip
    money = partial(money_text, currency=comparison.currency)
    points = [_point(entry, offer, cost(offer), money) for entry, offer in pairs]
    spread = max(p.y for p in points) / min(p.y for p in points)
    names = list(dict.fromkeys(p.series for p in points))
    picture = scatter(
        points, BOX, f"{x_title}, {comparison.currency}", "days", log_y=spread > 8, x_text=money
    )
    told = "; ".join(f"{p.label} {p.words}" for p in points[:12])
    body = picture + key(names, 496, 48, "nothing beats these" if len(points) > 1 else None)
    return Plot(name, title, told, WIDTH, HEIGHT, body)


def _point(entry: Entry, offer: Offer, x: float, money: Callable[[float], str]) -> Point:
    row = entry.row
    assert row.best is not None
    assert row.best.days is not None
    days = row.best.days
    words = f"{row.machine.label}, {offer.kind}: {interval_text(days)} days, {money(x)}"
    series = f"{offer.kind} {row.machine.name.removeprefix('NVIDIA ')}"
    return Point(x, days.value, series, row.machine.label, words, half_width=days.half_width)

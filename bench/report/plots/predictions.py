"""Plot predicted days against what a run costs, with what nine of ten predictions are within. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from bench.records.text import figures, money_text
from bench.report.compare.priced_predictions import PricedPrediction, machine_text
from bench.report.plots.scatter import Point, days_plot
from bench.report.plots.svg import Plot

SIZE = (700, 360)


def prediction_plots(rows: Sequence[PricedPrediction], currency: str) -> Iterator[Plot]:
    """Yield a plot for each model of which more than one cost is known; all points are hollow."""
    for model in dict.fromkeys(row.predicted.model for row in rows):
        points = [
            point
            for row in rows
            if row.predicted.model == model
            for point in _points(row, currency)
        ]  # fmt: skip
        if len(points) > 1:
            words = [f"{point.label} {point.words}" for point in points]
            title, x_title = (
                f"{model}: predicted days against the cost of a run",
                f"cost of a run, {currency}",
            )
            money = partial(money_text, currency=currency)
            yield days_plot(f"{model}-predicted", title, x_title, points, words, SIZE, x_text=money)


def _points(row: PricedPrediction, currency: str) -> Iterator[Point]:
    found = row.predicted
    for kind, cost in (("rent", row.rented), ("own", row.owned)):
        if cost is None:
            continue
        within = f"{figures(found.least_days)} to {figures(found.most_days)} days"
        words = f"{machine_text(found)}, {kind}: predicted {within}, {money_text(cost.amount, currency)}"
        series = f"{kind}, {found.gpus} GPU{'s' if found.gpus > 1 else ''}"
        label = machine_text(found)
        yield Point(
            cost.amount,
            found.days,
            series,
            label,
            words,
            half_width=found.most_days - found.days,
            hollow=True,
        )

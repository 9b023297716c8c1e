"""Plot predicted days against what a run costs, with what nine of ten predictions are within. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.records.marks import marked_text
from bench.records.text import count_text, currency_sign, figures, interval_text, money_text
from bench.report.compare.comparison import Comparison, Entry
from bench.report.compare.priced_predictions import PricedPrediction, machine_text
from bench.report.plots.scatter import Point, days_plot
from bench.report.plots.svg import Plot

SERIES_NAMES = {"rent": "rented", "own": "owned"}  # of shapes that can be filled


def prediction_plots(
    rows: Sequence[PricedPrediction], currency: str, measured: Comparison | None = None
) -> Iterator[Plot]:
    """Yield a plot for each model that has more than one cost; predicted points are hollow."""
    for model in dict.fromkeys(row.predicted.model for row in rows):
        points = [point for row in rows if row.predicted.model == model for point in _points(row, currency)]
        runs: list[str] = []
        if measured is not None:
            entries = [entry for entry in _measured_entries(model, measured) if entry.offers]
            points += _measured(entries, currency)
            runs = [entry.row.run_id for entry in entries]
        if len(points) > 1:
            words = [f"{point.label} {point.words}" for point in points]
            title = f"{model}: predicted days against the cost of a run"
            x_title = f"cost of a run, {currency}; hollow: predicted, filled: measured"
            of_plot = f"{model}-predicted", title, x_title, points, words, runs
            yield days_plot(*of_plot, x_unit=currency_sign(currency))


def _points(row: PricedPrediction, currency: str) -> Iterator[Point]:
    found = row.predicted
    for kind, cost in (("rent", row.rented), ("own", row.owned)):
        if cost is None:
            continue
        within = f"{figures(found.least_days)} to {figures(found.most_days)} days"
        yield Point(
            cost.amount,
            found.days,
            SERIES_NAMES[kind],
            machine_text(found),
            f"{machine_text(found)}, {kind}: predicted {within}, {money_text(cost.amount, currency)}",
            ends=(found.least_days, found.most_days),
            hollow=True,
            group=kind,
        )


def _measured_entries(model: str, comparison: Comparison) -> Sequence[Entry]:
    """Return the machines of the model's first group: figures of other groups are not comparable."""
    return next((part.entries for part in comparison.parts if part.model == model), ())


def not_drawn(models: Iterable[str], measured: Comparison) -> Iterator[str]:
    """Yield a line for each measured machine that the plots lack, with the reason."""
    for model in dict.fromkeys(models):
        for entry in _measured_entries(model, measured):
            if not entry.offers:
                why = "; ".join(entry.gaps) or "it has no price"
                yield f"{model}: {entry.row.machine.label} of {entry.row.path} is not drawn: {why}"
        if others := [p for p in measured.parts if p.model == model and p.number > 1]:
            groups = count_text(len(others), "group")
            yield f"{model}: not drawn: {groups} of its bundles, measured under other conditions"


def _measured(entries: Sequence[Entry], currency: str) -> Iterator[Point]:
    for entry in entries:
        days, machine = entry.days, entry.row.machine
        for offer in entry.offers:
            kind = "own" if offer.kind == "buy" else "rent"
            price = money_text(offer.run_cost, currency)
            figure = marked_text(f"{interval_text(days)} days", (mark.kind for mark in entry.row.marks))
            yield Point(
                offer.run_cost,
                days.value,
                SERIES_NAMES[kind],
                machine.label,
                f"{machine.label}, {kind}: measured {figure}, {price}",
                half_width=days.half_width,
                group=kind,
                marked=bool(entry.row.marks),
            )

"""Plot days against money: the price of each machine, and the cost of each run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.records.marks import marked_text
from bench.records.text import currency_sign, interval_text, money_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.offers import Offer
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess, days_text
from bench.report.plots.scatter import Point, days_plot
from bench.report.plots.svg import Plot


def plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    """Yield the plots of days against the price of a machine, and against the cost of a run."""
    every = [(entry, offer) for entry in part.entries for offer in entry.offers]
    guessed = [(guess, offer) for guess in part.guesses for offer in guess.offers]
    currency = comparison.currency
    bought = [measured_point(e, o, o.price, currency) for e, o in every if o.kind == "buy"]
    bought += [guessed_point(g, o, o.price, currency) for g, o in guessed if o.kind == "buy"]
    runs = [measured_point(entry, offer, offer.run_cost, currency) for entry, offer in every]
    runs += [guessed_point(guess, offer, offer.run_cost, currency) for guess, offer in guessed]
    buyable = [entry for entry, offer in every if offer.kind == "buy"]
    yield from _plot(part, "price", "price of the machine", bought, _run_ids(buyable), currency)
    yield from _plot(part, "run-cost", "cost of a run", runs, _run_ids(e for e, _ in every), currency)


def _run_ids(entries: Iterable[Entry]) -> list[str]:
    return [*dict.fromkeys(entry.row.run_id for entry in entries)]


def _plot(
    part: ModelPart, name: str, words: str, points: list[Point], runs: list[str], currency: str
) -> Iterator[Plot]:
    """Yield one plot, if there is more than one cost to compare; `runs` are those behind its points."""
    if len({point.x for point in points}) > 1:
        descriptions = [f"{p.label} {p.words}" for p in points]
        title, x_title = f"{part.title}: days against the {words}", f"{words}, {currency}"
        if any(point.hollow for point in points):
            x_title += "; hollow: estimated, not measured"
        of_plot = f"{part.name}-{name}", title, x_title, points, descriptions, runs
        yield days_plot(*of_plot, x_unit=currency_sign(currency))


def measured_point(entry: Entry, offer: Offer, cost: float, currency: str) -> Point:
    """Place a measured machine, with its interval."""
    row, days = entry.row, entry.days
    price = money_text(cost, currency)
    figure = marked_text(f"{interval_text(days)} days", (mark.kind for mark in row.marks))
    words = f"{row.machine.label}, {offer.kind}: {figure}, {price}"
    series = f"{offer.kind} {row.machine.name.removeprefix('NVIDIA ')}"
    of_machine = cost, days.value, series, row.machine.label, words
    return Point(*of_machine, half_width=days.half_width, marked=bool(row.marks))


def guessed_point(guess: PricedGuess, offer: GuessOffer, cost: float, currency: str) -> Point:
    """Place a guess: a hollow mark, and no line through the best points counts it."""
    assert guess.days is not None
    price = money_text(cost, currency)
    words = f"{guess.label}, {offer.kind}, estimated: {days_text(guess)} days, {price}"
    series = f"{offer.kind} {guess.gpu.removeprefix('NVIDIA ')}"
    ends = (guess.least_days, guess.high_days) if guess.high_days is not None else None
    return Point(cost, guess.days, series, guess.label, words, ends=ends, hollow=True, group=None)

"""Price guesses and compare them with the deadline and the budget, like measured rows.

In: guesses, the user's questions, and the answers of measured machines. Out: a `PricedGuess` for each. Pure.
A figure is "perhaps" within a limit if the limit lies in its interval, or if its interval has no upper end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.base.gpu_catalogue import power_limit_watts
from bench.base.strict_json import field_values
from bench.records.text import figures
from bench.report.compare.decision import Certainty, Recommendation, Wish, within
from bench.report.compare.extrapolate import Guess
from bench.report.compare.offers import Terms
from bench.report.compare.priced_predictions import machine_prices, nodes_of
from bench.report.compare.prices import Gap, Priced

CERTAINTIES: tuple[Certainty, ...] = ("yes", "perhaps", "no")


@dataclass(frozen=True, slots=True)
class GuessOffer:
    """An offer to buy or rent a machine that was not measured; its costs follow from guessed days."""

    kind: Literal["buy", "rent"]
    price: float  # to buy the machine, or to rent it for an hour
    run_cost: float  # of one run: its share of the price, or its rent
    least_run_cost: float
    most_run_cost: float | None  # None: the days have no upper end
    spend: float  # for all runs that were asked for
    least_spend: float
    most_spend: float | None
    gpus: int  # of each node that is paid for
    quotes: tuple[str, ...]
    in_budget: Certainty | None  # None: no budget was given
    outlived: bool  # to buy: the machine's life may be too short for all runs that were asked for
    unmetered: bool  # to buy: electricity has a price, but nobody measured this machine's power
    marks: tuple[str, ...] = ()  # the questions that this offer answers


@dataclass(frozen=True, slots=True)
class PricedGuess(Guess):
    """A guess with the offers for its machine; without days it has no offers."""

    in_time: Certainty | None = field(kw_only=True)  # None: no deadline was given
    offers: tuple[GuessOffer, ...] = field(kw_only=True)
    gaps: tuple[str, ...] = field(kw_only=True)  # why prices are missing

    @property
    def nodes(self) -> int:
        """The fewest nodes that hold all GPUs."""
        return nodes_of(self.gpus)

    @property
    def label(self) -> str:
        """The name in tables, in the form of `Machine.label`."""
        on_nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus}x {self.gpu.replace('NVIDIA ', '')}{on_nodes}"

    @property
    def best_in_budget(self) -> Certainty | None:
        """Whether the budget pays for it, bought or rented, whichever is surer; None: no budget or offer."""
        found = {offer.in_budget for offer in self.offers if not offer.outlived}
        return next((one for one in CERTAINTIES if one in found), None)

    @property
    def in_time_and_budget(self) -> Certainty | None:
        """The less sure of the two verdicts."""
        both = self.in_time, self.best_in_budget
        return next((one for one in reversed(CERTAINTIES) if one in both), None)


@dataclass(frozen=True, slots=True)
class GuessCosts:
    """The costs of a machine that was not measured, whose days are a guess."""

    upfront: float  # to buy it; 0 for a rented machine
    paid_a_day: float  # of training: rent, or upkeep, which a residual value may make negative
    of_a_day: float  # of training, with a share of the price: what the cost of a run is counted by

    def spend(self, runs: int, days: float) -> float:
        """Return the money spent on runs of `days` each, including the machine if it is bought."""
        return self.upfront + runs * self.paid_a_day * days

    def spend_between(self, runs: int, guess: Guess) -> tuple[float, float | None]:
        """Return the least and the most money for the days of a guess; None for a most without an end."""
        ends = [self.spend(runs, days) for days in (guess.least_days, guess.high_days) if days is not None]
        return min(ends), None if guess.high_days is None and self.paid_a_day > 0 else max(ends)


def price_guesses(
    guesses: Iterable[Guess], terms: Terms, measured: Recommendation, labels: Set[str]
) -> tuple[PricedGuess, ...]:
    """Price each guess, in the given order, and mark the offers that may answer a question better.

    `measured` has the answers of measured machines, and `labels` their names; guesses about them are not
    marked.
    """
    priced = [_priced(guess, terms) for guess in guesses]
    marks = _marks([guess for guess in priced if guess.label not in labels], terms.wish, measured)
    return tuple(
        replace(guess, offers=tuple(replace(o, marks=marks.get(id(o), ())) for o in guess.offers))
        for guess in priced
    )


def days_text(guess: PricedGuess) -> str:
    """Format the days with both ends of their interval: 1.03 (0.855 to 1.24)."""
    if guess.days is None:
        return f"over {figures(guess.at_peak_days)}"
    if guess.low_days is None or guess.high_days is None:
        return f"{figures(guess.days)} (no interval)"
    return f"{figures(guess.days)} ({figures(guess.low_days)} to {figures(guess.high_days)})"


def _priced(guess: Guess, terms: Terms) -> PricedGuess:
    in_time: Certainty | None = None
    deadline = terms.wish.deadline_days
    if deadline is not None:
        in_time = "no" if guess.impossible else within(guess.least_days, guess.high_days, deadline)
    prices = machine_prices(guess.gpu, guess.gpus, terms.prices)
    offers = _offers(guess, prices, terms) if guess.days is not None else ()
    return PricedGuess(
        **field_values(guess),
        in_time=in_time,
        offers=tuple(offers),
        gaps=tuple(price.reason for price in prices if isinstance(price, Gap)),
    )


def _offers(guess: Guess, prices: tuple[Priced | Gap, Priced | Gap], terms: Terms) -> Iterator[GuessOffer]:
    buy, rent = prices
    if isinstance(buy, Priced):
        upkeep, quotes = terms.prices.upkeep_of(buy, power_limit_watts(guess.gpu, guess.gpus))
        a_day = (buy.amount / terms.prices.life_days + upkeep) / terms.utilisation
        bought = replace(buy, quotes=(*buy.quotes, *quotes))
        paid_a_day = upkeep / terms.utilisation
        yield _offer(guess, "buy", bought, terms, GuessCosts(buy.amount, paid_a_day, a_day))
    if isinstance(rent, Priced):
        yield _offer(guess, "rent", rent, terms, GuessCosts(0.0, rent.amount * 24, rent.amount * 24))


def _offer(
    guess: Guess,
    kind: Literal["buy", "rent"],
    price: Priced,
    terms: Terms,
    costs: GuessCosts,
) -> GuessOffer:
    days = _days(guess)
    runs, budget = terms.wish.runs, terms.wish.budget
    least_spend, most_spend = costs.spend_between(runs, guess)
    longest = days if guess.high_days is None else guess.high_days
    return GuessOffer(
        kind=kind,
        price=price.amount,
        run_cost=costs.of_a_day * days,
        least_run_cost=costs.of_a_day * guess.least_days,
        most_run_cost=None if guess.high_days is None else costs.of_a_day * guess.high_days,
        spend=costs.spend(runs, days),
        least_spend=least_spend,
        most_spend=most_spend,
        gpus=price.gpus,
        quotes=price.quotes,
        in_budget=None if budget is None else within(least_spend, most_spend, budget),
        outlived=kind == "buy" and runs * longest > terms.used_days,
        unmetered=kind == "buy" and terms.prices.electricity is not None,
    )


def _marks(
    guesses: Sequence[PricedGuess], wish: Wish, measured: Recommendation
) -> Mapping[int, tuple[str, ...]]:
    """Return by the `id` of each offer, in words, the questions that it answers.

    If a measured machine answers a question, an offer is marked only if it may be better.
    """
    pairs = [(guess, offer) for guess in guesses for offer in guess.offers if not offer.outlived]
    found: dict[int, tuple[str, ...]] = {}
    for answer in (_by_deadline(pairs, wish, measured), _by_budget(pairs, measured)):
        if answer is not None:
            offer, words = answer
            found[id(offer)] = (*found.get(id(offer), ()), f"{words}, by estimate")
    return found


Pair = tuple[PricedGuess, GuessOffer]
Answered = tuple[GuessOffer, str]


def _by_deadline(pairs: Sequence[Pair], wish: Wish, measured: Recommendation) -> Answered | None:
    """Choose the cheapest offer in time and in budget; a certain one is preferred to one that perhaps is."""
    fitting = [pair for pair in pairs if pair[0].in_time in ("yes", "perhaps") and pair[1].in_budget != "no"]
    if not fitting:
        return None
    guess, offer = min(fitting, key=lambda p: (not _sure(*p), p[1].spend, _days(p[0]), p[0].label))
    best = measured.cheapest_by_deadline
    if best is not None:
        return (offer, "perhaps cheaper by the deadline") if offer.spend < best.spend(wish.runs) else None
    return offer, "cheapest by the deadline" if _sure(guess, offer) else "perhaps cheapest by the deadline"


def _by_budget(pairs: Sequence[Pair], measured: Recommendation) -> Answered | None:
    """Choose the fastest offer in budget; a certain one is preferred to one that perhaps is."""
    fitting = [pair for pair in pairs if pair[1].in_budget in ("yes", "perhaps")]
    if not fitting:
        return None
    guess, offer = min(fitting, key=lambda p: (p[1].in_budget != "yes", _days(p[0]), p[1].spend, p[0].label))
    fastest = measured.fastest_in_budget
    if fastest is not None:
        return (offer, "perhaps faster in budget") if _days(guess) < fastest.days.value else None
    return offer, "fastest in budget" if offer.in_budget == "yes" else "perhaps fastest in budget"


def _days(guess: Guess) -> float:
    assert guess.days is not None, "it has an offer"
    return guess.days


def _sure(guess: PricedGuess, offer: GuessOffer) -> bool:
    """Whether the guess is in time and in budget with its whole interval."""
    return "perhaps" not in (guess.in_time, offer.in_budget)

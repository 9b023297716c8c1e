"""Decide what to buy or rent, and rank machines, given days and prices in one currency. Pure arithmetic.

Intervals are those of a run on another machine of the kind, because the machine that is bought or rented is
not the one that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from bench.records.estimate import Interval

T = TypeVar("T")
Certainty = Literal["yes", "perhaps", "no"]  # that a figure is within a limit, given its interval


@dataclass(frozen=True, slots=True)
class Option:
    """A machine for one model, bought or rented."""

    label: str
    kind: Literal["buy", "rent"]
    days: Interval  # of one run
    upfront: float  # before the first run; 0 for a rented machine
    a_run: float  # for each run: rent, or electricity and upkeep if they have prices

    def spend(self, runs: int = 1) -> float:
        """Return the money spent on `runs` runs, including the machine if it is bought."""
        return self.upfront + runs * self.a_run

    def spend_interval(self, runs: int = 1) -> Interval:
        """Return `spend` with the uncertainty of the days: rent and electricity are paid by the hour."""
        share = self.days.half_width / self.days.value
        return Interval(self.spend(runs), runs * abs(self.a_run) * share)

    def lives_for(self, runs: int, used_days: float) -> bool:
        """Whether one machine can do `runs` runs: an owned one trains `used_days` in its life."""
        return self.kind == "rent" or runs * self.days.value <= used_days

    def run_cost(self, life_days: float, utilisation: float = 1.0) -> float:
        """Add up one run's share of the machine's price, by days of use, and its rent or electricity."""
        return self.upfront * self.days.value / (life_days * utilisation) + self.a_run


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's limits and number of runs; None: no limit was given."""

    budget: float | None = None
    deadline_days: float | None = None
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answers to a wish; None if no option fits or the question was not asked."""

    fastest_in_budget: Option | None
    cheapest_by_deadline: Option | None  # also within the budget, if one is given
    as_fast_for_less: Option | None  # cheaper than `fastest_in_budget` and not provably slower
    as_cheap_but_faster: Option | None  # faster than `cheapest_by_deadline` and not provably dearer

    def or_else(self, other: Recommendation) -> Recommendation:
        """Return these answers; the answers of `other` replace missing ones."""
        by_budget = self if self.fastest_in_budget else other
        by_deadline = self if self.cheapest_by_deadline else other
        return Recommendation(
            by_budget.fastest_in_budget,
            by_deadline.cheapest_by_deadline,
            by_budget.as_fast_for_less,
            by_deadline.as_cheap_but_faster,
        )


def meets(days: Interval, deadline_days: float) -> Certainty:
    """Whether the whole interval ends before the deadline."""
    return within(days.low, days.high, deadline_days)


def within(least: float, most: float | None, limit: float) -> Certainty:
    """Whether a figure from `least` to `most` is at most the limit; `most` None: there is no upper end."""
    if most is not None and most <= limit:
        return "yes"
    return "perhaps" if least <= limit else "no"


def decide(options: Iterable[Option], wish: Wish, used_days: float = math.inf) -> Recommendation:
    """Recommend by the wish; `used_days` is the time that an owned machine trains in its life."""
    # Of options with equal days and money, the one with the narrower interval, in any order of the bundles.
    alike = sorted(options, key=lambda o: (o.days.half_width, o.label, o.kind))
    every = [o for o in alike if o.lives_for(wish.runs, used_days)]
    affordable = [o for o in every if wish.budget is None or o.spend(wish.runs) <= wish.budget]
    fastest = min(affordable, key=_by_speed(wish), default=None) if wish.budget is not None else None
    in_time = [
        o for o in affordable if wish.deadline_days is not None and meets(o.days, wish.deadline_days) == "yes"
    ]
    cheapest = min(in_time, key=_by_spend(wish), default=None)
    return Recommendation(
        fastest,
        cheapest,
        _as_fast_for_less(affordable, fastest, wish),
        _as_cheap_but_faster(in_time, cheapest, wish),
    )


def _as_fast_for_less(affordable: list[Option], fastest: Option | None, wish: Wish) -> Option | None:
    """Find an option that costs less than the fastest and is not provably slower.

    Only options on the Pareto frontier count, so that a wide interval does not favour an option that is
    beaten in both days and money.
    """
    if fastest is None:
        return None
    best = frontier(affordable, lambda o: o.spend(wish.runs), lambda o: o.days.value)
    spent = fastest.spend(wish.runs)
    near = [o for o in best if o.spend(wish.runs) < spent and not differs(o.days, fastest.days)]
    return min(near, key=_by_spend(wish), default=None)


def _as_cheap_but_faster(in_time: list[Option], cheapest: Option | None, wish: Wish) -> Option | None:
    """Find an option that is faster than the cheapest and not provably dearer, on the Pareto frontier.

    For example, two GPUs at twice the rent may cost the same and take half the time.
    """
    if cheapest is None:
        return None
    spent = cheapest.spend_interval(wish.runs)
    best = frontier(in_time, lambda o: o.spend(wish.runs), lambda o: o.days.value)
    near = [o for o in best if differs(o.days, cheapest.days)]  # no slower one is on the frontier
    near = [o for o in near if not _surely_more(o.spend_interval(wish.runs), spent)]
    return min(near, key=_by_speed(wish), default=None)


def _surely_more(a: Interval, b: Interval) -> bool:
    return a.value - b.value > half_width_of_difference(a, b)


def _by_speed(wish: Wish) -> Callable[[Option], tuple[float, float, str, str]]:
    """Make a sort key: days, then money, then the label, so that the order of the bundles does not matter."""
    return lambda o: (o.days.value, o.spend(wish.runs), o.label, o.kind)


def _by_spend(wish: Wish) -> Callable[[Option], tuple[float, float, str, str]]:
    return lambda o: (o.spend(wish.runs), o.days.value, o.label, o.kind)


def differs(a: Interval, b: Interval) -> bool:
    """Whether two times differ at 95%."""
    return abs(a.value - b.value) > half_width_of_difference(a, b)


def half_width_of_difference(a: Interval, b: Interval) -> float:
    """Return the half-width of a - b. Every platform rounds a square root alike, but not hypot."""
    return math.sqrt(a.half_width * a.half_width + b.half_width * b.half_width)


def ratio(a: Interval, b: Interval) -> Interval:
    """Divide a by b; the half-width is propagated to first order."""
    value = a.value / b.value
    return Interval(value, value * math.hypot(a.half_width / a.value, b.half_width / b.value))


def without_marks(pairs: Iterable[tuple[bool, T]]) -> list[T]:
    """Return the items that are not marked, each given after whether it is; all if every item is marked."""
    every = list(pairs)
    return [item for marked, item in every if not marked] or [item for _, item in every]


def frontier(items: Iterable[T], cost: Callable[[T], float], days: Callable[[T], float]) -> list[T]:
    """Return the Pareto frontier, cheapest first: no other item is both as cheap and as fast."""
    chosen: list[T] = []
    for item in sorted(items, key=lambda i: (cost(i), days(i))):
        if not chosen or days(item) < days(chosen[-1]):
            chosen.append(item)
    return chosen


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The number of runs from which owning a machine costs less than renting."""

    runs: int
    utilisation: float  # share of the machine's life that the runs take; above 1 it cannot do them

    def reachable(self, share: float = 1.0) -> bool:
        """Whether a machine that trains for `share` of its life can do `runs` runs."""
        return self.utilisation <= share


def break_even(own: Option, rent: Option, life_days: float) -> BreakEven | None:
    """Count the runs from which owning costs less; None if renting costs no more for each run."""
    saved = rent.a_run - own.a_run
    if saved <= 0:
        return None
    runs = math.ceil(own.upfront / saved)
    return BreakEven(runs, runs * own.days.value / life_days)


@dataclass(frozen=True, slots=True)
class Rank:
    """A machine's rank. Machines of one rank are not provably slower than the first of them."""

    rank: int
    slower: Interval | None  # as a multiple of the fastest machine's days; None for the fastest


def places(days: Sequence[Interval], sound: int | None = None) -> list[Rank]:
    """Rank days in ascending order; a significant difference to the first of a rank begins a new rank.

    The first `sound` days are figures without marks. The marked ones follow, again in ascending order, and
    begin a new rank. None: no figure is marked.
    """
    ranks: list[Rank] = []
    leader, rank = 0, 1
    for i, interval in enumerate(days):
        if i == sound or differs(interval, days[leader]):
            leader, rank = i, i + 1
        ranks.append(Rank(rank, ratio(interval, days[0]) if i else None))
    return ranks

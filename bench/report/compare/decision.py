"""What to buy or rent, given days and prices. Pure: no files, no clocks, no names of machines but labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from bench.records.estimate import Interval

T = TypeVar("T")
HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True)
class Option:
    """One machine for one model, bought or rented; all money in one currency."""

    label: str
    kind: Literal["buy", "rent"]
    days: Interval  # of one run
    upfront: float  # before the first run: nothing to rent
    a_run: float  # each run on top: rent, or electricity where it has a price

    def spend(self, runs: int = 1) -> float:
        """Money out of the door for so many runs."""
        return self.upfront + runs * self.a_run

    def spend_interval(self, runs: int = 1) -> Interval:
        """Rent and electricity are by the hour, so they are as sure as the days."""
        share = self.days.of_any_process.half_width / self.days.value
        return Interval(self.spend(runs), runs * self.a_run * share)

    def lives_for(self, runs: int, used_days: float) -> bool:
        """One machine of one's own trains for so many days in its life; as many as are needed are rented."""
        return self.kind == "rent" or runs * self.days.value <= used_days

    def run_cost(self, life_days: float, utilisation: float = 1.0) -> float:
        """One run's share of everything: the machine's price over the days it is used in its life."""
        return self.upfront * self.days.value / (life_days * utilisation) + self.a_run


@dataclass(frozen=True, slots=True)
class Wish:
    budget: float | None = None
    deadline_days: float | None = None
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Two questions, one answer each; None where nothing fits, or nothing was asked."""

    fastest_in_budget: Option | None
    cheapest_by_deadline: Option | None  # within the budget, if there is one
    as_fast_for_less: Option | None  # not provably slower than the fastest in budget, and cheaper
    as_cheap_but_faster: Option | None  # not provably dearer than the cheapest by the deadline, and faster


def meets(days: Interval, deadline_days: float) -> Literal["yes", "perhaps", "no"]:
    """A deadline inside the interval is neither met nor missed: the run it is for is another process."""
    half_width = days.of_any_process.half_width
    if days.value + half_width <= deadline_days:
        return "yes"
    return "perhaps" if days.value - half_width <= deadline_days else "no"


def decide(options: Iterable[Option], wish: Wish, used_days: float = math.inf) -> Recommendation:
    """`used_days`: what a machine of one's own trains in its life."""
    every = [o for o in options if o.lives_for(wish.runs, used_days)]
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
    """Of the frontier alone: a wide interval must not speak for what another beats in both."""
    if fastest is None:
        return None
    best = frontier(affordable, lambda o: o.spend(wish.runs), lambda o: o.days.value)
    spent = fastest.spend(wish.runs)
    near = [o for o in best if o.spend(wish.runs) < spent and not differs(o.days, fastest.days)]
    return min(near, key=_by_spend(wish), default=None)


def _as_cheap_but_faster(in_time: list[Option], cheapest: Option | None, wish: Wish) -> Option | None:
    """Of the frontier, too. Two of a kind at twice the rent cost the same and take half the time."""
    if cheapest is None:
        return None
    spent = cheapest.spend_interval(wish.runs)
    best = frontier(in_time, lambda o: o.spend(wish.runs), lambda o: o.days.value)
    near = [o for o in best if o.days.value < cheapest.days.value and differs(o.days, cheapest.days)]
    near = [o for o in near if not _surely_more(o.spend_interval(wish.runs), spent)]
    return min(near, key=_by_speed(wish), default=None)


def _surely_more(a: Interval, b: Interval) -> bool:
    return a.value - b.value > math.hypot(a.half_width, b.half_width)


def _by_speed(wish: Wish) -> Callable[[Option], tuple[float, float, str, str]]:
    """Faster, then cheaper; then by name, so that the order of the bundles decides nothing."""
    return lambda o: (o.days.value, o.spend(wish.runs), o.label, o.kind)


def _by_spend(wish: Wish) -> Callable[[Option], tuple[float, float, str, str]]:
    return lambda o: (o.spend(wish.runs), o.days.value, o.label, o.kind)


def differs(a: Interval, b: Interval) -> bool:
    """At 95%: the difference is larger than the half-width of the difference, of two processes."""
    return abs(a.value - b.value) > math.hypot(a.of_any_process.half_width, b.of_any_process.half_width)


def ratio(a: Interval, b: Interval) -> Interval:
    """a over b, to first order."""
    value = a.value / b.value
    a, b = a.of_any_process, b.of_any_process
    return Interval(value, value * math.hypot(a.half_width / a.value, b.half_width / b.value))


def frontier(items: Iterable[T], cost: Callable[[T], float], days: Callable[[T], float]) -> list[T]:
    """Those that nothing else beats: no other costs as little and is as fast. The cheapest first."""
    chosen: list[T] = []
    for item in sorted(items, key=lambda i: (cost(i), days(i))):
        if not chosen or days(item) < days(chosen[-1]):
            chosen.append(item)
    return chosen


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From how many runs in a machine's life on owning it costs less than renting the other."""

    runs: int
    utilisation: float  # of the life, at that many runs; more than 1: never, one machine cannot do them

    def reachable(self, share: float = 1.0) -> bool:
        """By a machine that trains for that share of its life."""
        return self.utilisation <= share


def break_even(own: Option, rent: Option, life_days: float) -> BreakEven | None:
    """None if a rented run costs no more than the electricity of one's own: then renting always wins."""
    saved = rent.a_run - own.a_run
    if saved <= 0:
        return None
    runs = math.ceil(own.upfront / saved)  # there is no third of a run
    return BreakEven(runs, runs * own.days.value / life_days)


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank that is earned: equal ranks are not provably different from the best of their rank."""

    rank: int
    slower: Interval | None  # times the fastest; None for the fastest


def places(days: Sequence[Interval]) -> list[Rank]:
    """For days in ascending order. A new rank begins where the difference to its leader is significant."""
    found: list[Rank] = []
    leader, rank = 0, 1
    for i, one in enumerate(days):
        if i and differs(one, days[leader]):
            leader, rank = i, i + 1
        found.append(Rank(rank, ratio(one, days[0]) if i else None))
    return found

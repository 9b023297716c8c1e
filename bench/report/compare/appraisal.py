"""Appraise the machines of one model: their ranks, what to buy or rent, and how each offer stands.

In: a `PricedMachine` for each ranked figure, and the user's wish. Out: an `Appraisal`. Pure arithmetic.

The report's script decides by the same rules when a reader changes the wish (bench/data/report/rules.js).
tests/e2e/test_what_if.py holds both against each other, so a rule that changes here changes there.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records.estimate import Interval
from bench.report.compare.decision import (
    BreakEven,
    Option,
    Rank,
    Recommendation,
    Wish,
    break_even,
    decide,
    frontier,
    meets,
    places,
    without_marks,
)


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """A figure of one model on one machine, and the prices of the machine."""

    label: str
    days: Interval  # of a run on another machine of this kind
    marked: bool  # whether the figure has marks (bench.records.marks): it ranks after all figures without
    price: float | None  # to buy the machine; None: no quote
    electricity: float  # of a run on an owned machine; 0 if it has no price or was not measured
    upkeep: float  # of a day of an owned machine; 0 if it has no price
    rent: float | None  # for an hour; None: no quote

    def options(self, utilisation: float) -> tuple[Option, ...]:
        """Return the options to buy and to rent that have a price; none if the run would never end.

        The days on which an owned machine trains also pay the upkeep of the days on which it does not.
        """
        if not math.isfinite(self.days.value):
            return ()
        found = []
        if self.price is not None:
            a_run = self.electricity + self.upkeep * self.days.value / utilisation
            found.append(Option(self.label, "buy", self.days, self.price, a_run))
        if self.rent is not None:
            found.append(Option(self.label, "rent", self.days, 0.0, self.rent * self.days.value * 24))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class AppraisedOffer:
    """An offer to buy or rent a machine, judged by the user's wish and compared with the other offers."""

    kind: Literal["buy", "rent"]
    run_cost: float  # of one run: its share of price, electricity and upkeep, or its rent
    spend: float  # for all runs that were asked for
    in_budget: bool | None  # None: no budget was given
    outlived: bool  # to buy: the machine's life is too short for all runs that were asked for
    on_frontier: bool  # among figures without marks or, if there are none, among all
    break_even: BreakEven | None  # to buy: against the cheapest rent of a figure that has no marks
    rent_always_less: bool  # the cheapest rent costs less than this machine's electricity and upkeep
    marks: tuple[str, ...]  # the questions that this offer answers


@dataclass(frozen=True, slots=True)
class AppraisedMachine:
    """A machine's rank, whether it is in time, and its offers: to buy, then to rent."""

    place: Rank
    in_time: Literal["yes", "perhaps", "no"] | None  # None: no deadline was given
    offers: tuple[AppraisedOffer, ...]


@dataclass(frozen=True, slots=True)
class Appraisal:
    """The machines of one model in their order, and the answer to the user's wish."""

    order: tuple[int, ...]  # positions of the given machines; those without marks first, then by days
    machines: tuple[AppraisedMachine, ...]  # in this order
    answer: Recommendation
    nothing_in_budget: bool
    nothing_in_time: bool


def appraise(
    given: Sequence[PricedMachine], wish: Wish, life_days: float, utilisation: float = 1.0
) -> Appraisal:
    """Appraise machines, in any order. An owned machine lives `life_days` and trains a share of them."""
    order = sorted(range(len(given)), key=lambda i: (given[i].marked, given[i].days.value, given[i].label))
    machines = [given[i] for i in order]
    options = [machine.options(utilisation) for machine in machines]
    every = [option for own in options for option in own]
    marked = [machine.marked for machine, own in zip(machines, options, strict=True) for _ in own]
    pairs = list(zip(marked, every, strict=True))
    answer = recommend(pairs, wish, life_days * utilisation)
    best = {id(option) for option in _frontiers(pairs, life_days, utilisation)}
    judged = _judged(every, answer, best, _cheapest_rent(pairs), wish, life_days, utilisation)
    ranks = places([machine.days for machine in machines], sum(not machine.marked for machine in machines))
    deadline = wish.deadline_days
    appraised = tuple(
        AppraisedMachine(
            place=place,
            in_time=None if deadline is None else meets(machine.days, deadline),
            offers=tuple(judged[id(option)] for option in own),
        )
        for machine, own, place in zip(machines, options, ranks, strict=True)
    )
    in_time = any(one.in_time == "yes" for one in appraised)
    return Appraisal(
        order=tuple(order),
        machines=appraised,
        answer=answer,
        nothing_in_budget=wish.budget is not None and bool(every) and answer.fastest_in_budget is None,
        nothing_in_time=(
            deadline is not None
            and bool(machines)
            and not (in_time if wish.budget is None or not every else answer.cheapest_by_deadline)
        ),
    )


def recommend(options: Sequence[tuple[bool, Option]], wish: Wish, used_days: float) -> Recommendation:
    """Say what to buy or rent; each option has whether its figure is marked.

    A marked option answers only questions that no other option answers.
    """
    sound = [option for marked, option in options if not marked]
    every = [option for _, option in options]
    return decide(sound, wish, used_days).or_else(decide(every, wish, used_days))


def _cheapest_rent(options: Sequence[tuple[bool, Option]]) -> Option | None:
    """Return the cheapest rented run of a figure without marks or, if no other is rented, of a marked one."""
    rents = without_marks((marked, option) for marked, option in options if option.kind == "rent")
    return min(rents, key=lambda option: option.a_run, default=None)


def _judged(
    options: Sequence[Option],
    answer: Recommendation,
    best: Container[int],
    rent: Option | None,
    wish: Wish,
    life_days: float,
    utilisation: float,
) -> Mapping[int, AppraisedOffer]:
    """Judge each option of a model by the user's wish and the other options; keyed by the option's `id`.

    `best` has the `id` of each option on a frontier. `rent` is the rented run with which owning is compared;
    None without a rent.
    """
    answers = {
        "fastest in budget": answer.fastest_in_budget,
        "as fast within the interval, for less": answer.as_fast_for_less,
        "cheapest by the deadline": answer.cheapest_by_deadline,
        "as cheap within the interval, and faster": answer.as_cheap_but_faster,
    }
    found = {}
    for option in options:
        spend = option.spend(wish.runs)
        even = break_even(option, rent, life_days) if rent else None
        found[id(option)] = AppraisedOffer(
            kind=option.kind,
            run_cost=option.run_cost(life_days, utilisation),
            spend=spend,
            in_budget=None if wish.budget is None else spend <= wish.budget,
            outlived=not option.lives_for(wish.runs, life_days * utilisation),
            on_frontier=id(option) in best,
            break_even=even,
            rent_always_less=option.kind == "buy" and rent is not None and even is None,
            marks=tuple(words for words, chosen in answers.items() if chosen is option),
        )
    return found


def _frontiers(options: Sequence[tuple[bool, Option]], life_days: float, utilisation: float) -> list[Option]:
    """Return the options on a Pareto frontier: days against a machine's price, or against a run's cost.

    Each option is given after whether its figure is marked; a marked one counts only if all others are, too.
    """
    bought = without_marks((marked, option) for marked, option in options if option.kind == "buy")
    by_price = frontier(bought, lambda o: o.upfront, lambda o: o.days.value)
    by_run = frontier(
        without_marks(options), lambda o: o.run_cost(life_days, utilisation), lambda o: o.days.value
    )
    return [*by_price, *by_run]

"""Rows at their prices: ways to get each machine, and which of them to choose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.base.gpu_catalogue import GpuModel
from bench.records.estimate import Interval
from bench.report.compare.compared_rows import Row
from bench.report.compare.decision import (
    BreakEven,
    Option,
    Recommendation,
    Wish,
    break_even,
    decide,
    frontier,
)
from bench.report.compare.prices import Gap, PriceBook, Priced


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user wants to know, and at which prices."""

    prices: PriceBook
    wish: Wish
    utilisation: float = 1.0  # share of its life that an owned machine trains
    rank_all: bool = False  # rank what cannot be compared, too
    wanted: tuple[tuple[GpuModel, int], ...] = ()  # machines to estimate, and how many GPUs
    own_prices: bool = False  # the prices are the user's, not the shipped ones alone

    @property
    def used_days(self) -> float:
        """What a machine of one's own trains in its life."""
        return self.prices.life_days * self.utilisation


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to get a machine, with every figure that is shown of it."""

    kind: Literal["buy", "rent"]
    price: float  # to buy the machine, or to rent it for an hour
    run_cost: float  # of one run: its share of price and electricity, or its rent
    spend: float  # out of the door for all runs that were asked for
    gpus: int  # of the machine that is paid for, which may have more than trained
    quotes: tuple[str, ...]  # what was quoted for how much, by whom and when
    in_budget: bool | None  # None: no budget was named
    on_frontier: bool
    break_even: BreakEven | None  # to buy: against the cheapest rented run of this model
    marks: tuple[str, ...]  # what the recommendation says of it
    rent_always_less: bool = False  # than this machine's electricity alone
    unmetered: bool = False  # electricity has a price, but what this machine draws was not measured
    outlived: bool = False  # to buy: one machine's life does not hold all runs that were asked for


def offers_of(
    rows: Sequence[Row], terms: Terms
) -> tuple[list[tuple[tuple[Offer, ...], tuple[str, ...]]], Recommendation]:
    """For each row its offers and the prices that are not there; and, over all, what to buy or rent."""
    made = [_options(row, terms.prices) for row in rows]
    options = [option for pairs, _ in made for option, _ in pairs]
    answer = decide(options, terms.wish, terms.used_days)
    fronts = _frontiers(options, terms)
    cheapest_rent = min((o for o in options if o.kind == "rent"), key=lambda o: o.a_run, default=None)
    offered = [
        (tuple(_offer(row, o, priced, terms, answer, fronts, cheapest_rent) for o, priced in pairs), gaps)
        for row, (pairs, gaps) in zip(rows, made, strict=True)
    ]
    return offered, answer


def days_of(row: Row) -> Interval:
    assert row.best is not None
    assert row.best.days is not None
    return row.best.days


def _options(row: Row, book: PriceBook) -> tuple[list[tuple[Option, Priced]], tuple[str, ...]]:
    machine, days = row.machine, days_of(row)
    fed = book.to_feed(row.kwh) if row.kwh is not None else None
    options: list[tuple[Option, Priced]] = []
    gaps = []
    if machine.kind != "cuda":
        return [], (f"no price for a CPU: {machine.name}",)
    each = machine.devices // machine.nodes
    match _of_all(book.to_buy(machine.name, each), machine.nodes):
        case Priced() as priced:
            option = Option(machine.label, "buy", days, priced.amount, fed.amount if fed else 0.0)
            quotes = priced.quotes + (fed.quotes if fed else ())
            options.append((option, replace(priced, quotes=quotes)))
        case Gap() as gap:
            gaps.append(gap.reason)
    match _of_all(book.to_rent(machine.name, each), machine.nodes):
        case Priced() as priced:
            rent = priced.amount * days.value * 24
            options.append((Option(machine.label, "rent", days, 0.0, rent), priced))
        case Gap() as gap:
            gaps.append(gap.reason)
    return options, tuple(gaps)


def _of_all(one: Priced | Gap, nodes: int) -> Priced | Gap:
    """As many machines as trained as one: two of one GPU are no machine of two."""
    return replace(one, amount=one.amount * nodes) if isinstance(one, Priced) else one


def _frontiers(options: list[Option], terms: Terms) -> set[int]:
    """Of days against money: machines to buy by their price, and every run by its cost."""
    life, share = terms.prices.life_days, terms.utilisation
    bought = [o for o in options if o.kind == "buy"]
    by_price = frontier(bought, lambda o: o.upfront, lambda o: o.days.value)
    by_run = frontier(options, lambda o: o.run_cost(life, share), lambda o: o.days.value)
    return {id(option) for option in [*by_price, *by_run]}


def _offer(
    row: Row, option: Option, priced: Priced, terms: Terms, answer: Recommendation, fronts: set[int],
    rent: Option | None,
) -> Offer:  # fmt: skip
    wish, book = terms.wish, terms.prices
    marks = {
        "fastest in budget": answer.fastest_in_budget,
        "as fast within the interval, for less": answer.as_fast_for_less,
        "cheapest by the deadline": answer.cheapest_by_deadline,
        "as cheap within the interval, and faster": answer.as_cheap_but_faster,
    }
    even = break_even(option, rent, book.life_days) if option.kind == "buy" and rent else None
    return Offer(
        kind=option.kind,
        price=priced.amount,
        run_cost=option.run_cost(book.life_days, terms.utilisation),
        spend=option.spend(wish.runs),
        gpus=priced.gpus,
        quotes=priced.quotes,
        in_budget=None if wish.budget is None else option.spend(wish.runs) <= wish.budget,
        on_frontier=id(option) in fronts,
        break_even=even,
        marks=tuple(words for words, chosen in marks.items() if chosen is option),
        rent_always_less=option.kind == "buy" and rent is not None and even is None,
        unmetered=option.kind == "buy" and book.electricity is not None and row.kwh is None,
        outlived=not option.lives_for(wish.runs, terms.used_days),
    )

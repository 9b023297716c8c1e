"""Price ranked rows: buying and renting each machine, and which offers answer the user's questions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.records.spread import on_another_machine
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.decision import (
    BreakEven,
    Option,
    Recommendation,
    Wish,
    break_even,
    decide,
    frontier,
)
from bench.report.compare.prices import Gap, PriceBook, Priced, for_nodes


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's questions and prices."""

    prices: PriceBook
    wish: Wish
    utilisation: float = 1.0  # share of its life that an owned machine trains
    rank_all: bool = False  # rank rows that differ in their conditions, too
    wanted: tuple[tuple[GpuModel, int], ...] = ()  # machines to estimate: kind and number of GPUs
    own_prices: bool = False  # the user gave a file of prices

    @property
    def used_days(self) -> float:
        """Days that an owned machine trains in its life."""
        return self.prices.life_days * self.utilisation


@dataclass(frozen=True, slots=True)
class Offer:
    """Buying or renting a machine, with every figure that the outputs show."""

    kind: Literal["buy", "rent"]
    price: float  # to buy the machine, or to rent it for an hour
    run_cost: float  # of one run: its share of price and electricity, or its rent
    spend: float  # for all runs that were asked for
    gpus: int  # of the machine that is paid for, which may have more than trained
    quotes: tuple[str, ...]  # each with amount, source and date
    in_budget: bool | None  # None: no budget was given
    on_frontier: bool
    break_even: BreakEven | None  # to buy: against the cheapest rented run of this model
    marks: tuple[str, ...]  # the questions that this offer answers
    rent_always_less: bool  # the cheapest rent costs less than this machine's electricity and upkeep
    unmetered: bool  # electricity has a price, but this machine's power was not measured
    outlived: bool  # to buy: the machine's life is too short for all runs that were asked for


def offers_of(
    rows: Sequence[RankedRow], terms: Terms
) -> tuple[list[tuple[tuple[Offer, ...], tuple[str, ...]]], Recommendation]:
    """Return for each row its offers and why prices are missing, and over all rows what to buy or rent."""
    by_row = [_options(row, terms.prices, terms.utilisation) for row in rows]
    options = [option for pairs, _ in by_row for option, _ in pairs]
    sound = [
        option for row, (pairs, _) in zip(rows, by_row, strict=True) if not row.marks for option, _ in pairs
    ]
    answer = decide(sound, terms.wish, terms.used_days).or_else(decide(options, terms.wish, terms.used_days))
    fronts = _frontiers(options, terms)
    cheapest_rent = min((o for o in options if o.kind == "rent"), key=lambda o: o.a_run, default=None)
    offered = [
        (tuple(_offer(row, o, priced, terms, answer, fronts, cheapest_rent) for o, priced in pairs), gaps)
        for row, (pairs, gaps) in zip(rows, by_row, strict=True)
    ]
    return offered, answer


def _options(
    row: RankedRow, book: PriceBook, utilisation: float
) -> tuple[list[tuple[Option, Priced]], tuple[str, ...]]:
    """Price buying and renting the row's machine, and say why prices are missing.

    The upkeep of days on which an own machine does not train is paid by the days on which it does.
    """
    machine, days = row.machine, on_another_machine(row.days)
    if machine.kind != "cuda":
        return [], (f"no price for a CPU: {machine.name}",)
    gpus_a_node = machine.devices // machine.nodes
    buy = for_nodes(book.to_buy(machine.name, gpus_a_node), machine.nodes)
    rent = for_nodes(book.to_rent(machine.name, gpus_a_node), machine.nodes)
    options: list[tuple[Option, Priced]] = []
    if isinstance(buy, Priced):
        a_run, quotes = book.electricity_of(row.kwh)
        known = gpu_named(machine.name)
        watts = known.watts * machine.devices if known and known.watts else None
        upkeep, of_upkeep = book.upkeep_of(buy, watts)
        option = Option(machine.label, "buy", days, buy.amount, a_run + upkeep * days.value / utilisation)
        options.append((option, replace(buy, quotes=(*buy.quotes, *quotes, *of_upkeep))))
    if isinstance(rent, Priced):
        a_run = rent.amount * days.value * 24
        options.append((Option(machine.label, "rent", days, 0.0, a_run), rent))
    return options, tuple(price.reason for price in (buy, rent) if isinstance(price, Gap))


def _frontiers(options: list[Option], terms: Terms) -> set[int]:
    """Return the ids of options on a Pareto frontier: days against a machine's price, or a run's cost."""
    life, share = terms.prices.life_days, terms.utilisation
    bought = [o for o in options if o.kind == "buy"]
    by_price = frontier(bought, lambda o: o.upfront, lambda o: o.days.value)
    by_run = frontier(options, lambda o: o.run_cost(life, share), lambda o: o.days.value)
    return {id(option) for option in [*by_price, *by_run]}


def _offer(
    row: RankedRow,
    option: Option,
    priced: Priced,
    terms: Terms,
    answer: Recommendation,
    fronts: set[int],
    rent: Option | None,
) -> Offer:
    wish, book = terms.wish, terms.prices
    marks = {
        "fastest in budget": answer.fastest_in_budget,
        "as fast within the interval, for less": answer.as_fast_for_less,
        "cheapest by the deadline": answer.cheapest_by_deadline,
        "as cheap within the interval, and faster": answer.as_cheap_but_faster,
    }
    even = break_even(option, rent, book.life_days) if rent else None  # no rent beats the cheapest one
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

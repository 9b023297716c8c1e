"""Ranks, offers and the answer of one model, from figures and prices alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records.estimate import Interval
from bench.report.compare.appraisal import Appraisal, PricedMachine, appraise
from bench.report.compare.decision import Wish, decide
from tests.report.appraisal_vectors import SEED, AppraisalInput, inputs

LIFE_DAYS = 1825.0


def machine(label: str = "1x H200", days: float = 10.0, half: float = 0.5, **more: object) -> PricedMachine:
    given = {"marked": False, "price": None, "electricity": 0.0, "upkeep": 0.0, "rent": None}
    return PricedMachine(label, Interval(days, half), **(given | more))  # type: ignore[arg-type]


def appraised(*machines: PricedMachine, utilisation: float = 1.0, **wish: float) -> Appraisal:
    return appraise(machines, Wish(**wish), LIFE_DAYS, utilisation)  # type: ignore[arg-type]


amounts = st.none() | st.floats(0.01, 1e6)
machines = st.lists(
    st.builds(
        PricedMachine,
        st.sampled_from(["1x H100", "1x H200", "2x H200"]),
        st.builds(Interval, st.floats(0.01, 1e4), st.floats(0, 10)),
        st.booleans(),
        amounts,
        st.sampled_from([0.0, 12.5]),
        st.sampled_from([0.0, 3.5]),
        amounts,
    ),
    max_size=6,
)


@given(machines, st.none() | st.floats(0.01, 1e6), st.none() | st.floats(0.01, 1e4), st.integers(1, 50))
def test_machines_without_marks_are_ranked_first_then_by_days(
    given: list[PricedMachine], budget: float | None, deadline: float | None, runs: int
) -> None:
    found = appraise(given, Wish(budget, deadline, runs), LIFE_DAYS)
    assert sorted(found.order) == list(range(len(given)))
    keys = [(given[i].marked, given[i].days.value) for i in found.order]
    assert keys == sorted(keys)
    ranks = [one.place.rank for one in found.machines]
    assert ranks == sorted(ranks)
    sound = [o for i in found.order if not given[i].marked for o in given[i].options(1.0)]
    best = decide(sound, Wish(budget, deadline, runs), LIFE_DAYS)
    if best.fastest_in_budget is not None:
        assert found.answer.fastest_in_budget == best.fastest_in_budget
    if best.cheapest_by_deadline is not None:
        assert found.answer.cheapest_by_deadline == best.cheapest_by_deadline


def test_an_offer_says_how_it_stands_to_the_wish() -> None:
    found = appraised(
        machine(price=40_000.0, electricity=100.0, rent=4.0), budget=2_000, deadline_days=10.2, runs=2
    )
    (only,) = found.machines
    buy, rent = only.offers
    assert only.in_time == "perhaps"
    assert (buy.kind, buy.spend, buy.in_budget) == ("buy", 40_200.0, False)
    assert (rent.kind, rent.spend, rent.in_budget) == ("rent", 1_920.0, True)
    assert rent.marks == ("fastest in budget",)
    assert buy.run_cost == pytest.approx(40_000 * 10 / LIFE_DAYS + 100)
    assert buy.break_even is not None
    assert buy.break_even.runs == math.ceil(40_000 / (960 - 100))
    assert (found.nothing_in_budget, found.nothing_in_time) == (False, True)


def test_owning_is_compared_with_a_marked_rent_only_if_no_other_machine_is_rented() -> None:
    """A run on the own machine costs $100: $140 less than the healthy rent, and more than the marked one."""
    own = machine("own", 10.0, price=1_400.0, electricity=100.0)
    healthy, marked = machine("a", 10.0, rent=1.0), machine("b", 5.0, rent=0.5, marked=True)
    even = appraised(own, healthy, marked).machines[1].offers[0].break_even
    assert even is not None and even.runs == 10
    only_marked = appraised(own, marked).machines[0].offers[0]
    assert (only_marked.break_even, only_marked.rent_always_less) == (None, True)


def test_a_marked_figure_is_on_a_frontier_only_if_all_figures_are_marked() -> None:
    """The marked machine is cheaper and faster than the healthy one, to buy and to rent."""
    healthy = machine("a", 10.0, price=2_000_000.0, rent=2.0)
    slowed = machine("b", 5.0, price=1_000_000.0, rent=1.0, marked=True)
    both = appraised(healthy, slowed)
    assert [[offer.on_frontier for offer in one.offers] for one in both.machines] == [
        [True, True],
        [False, False],
    ]
    (alone,) = appraised(slowed).machines
    assert [offer.on_frontier for offer in alone.offers] == [True, True]
    rented = appraised(replace(healthy, price=None), slowed)
    assert [offer.on_frontier for offer in rented.machines[1].offers] == [True, False], "no other is sold"


@pytest.mark.parametrize(("budget", "in_budget"), [(240.0, True), (239.0, False)])
def test_an_offer_of_exactly_the_budget_is_within_it(budget: float, in_budget: bool) -> None:
    """Ten days at $1 an hour are $240."""
    (only,) = appraised(machine(rent=1.0), budget=budget).machines
    assert only.offers[0].in_budget == in_budget


@pytest.mark.parametrize(("rent", "always_less"), [(None, False), (1.0, True), (2.0, False)])
def test_renting_always_costs_less_only_if_there_is_a_rent_below_what_an_owned_run_costs(
    rent: float | None, always_less: bool
) -> None:
    """A run of ten days costs $240 of electricity on the own machine, and $240 or $480 on a rented one."""
    (only,) = appraised(machine(price=1_000.0, electricity=240.0, rent=rent)).machines
    assert only.offers[0].rent_always_less == always_less


def test_the_first_machine_with_a_mark_begins_a_rank_however_close_it_is() -> None:
    """Three machines that do not differ provably: those without a mark share the first rank."""
    healthy = (machine("a", 10.0), machine("b", 10.1))
    found = appraised(*healthy, machine("c", 10.0, marked=True))
    assert [one.place.rank for one in found.machines] == [1, 1, 3]


def test_a_marked_machine_answers_only_what_no_other_answers() -> None:
    healthy, marked = machine("1x H100", 10.0, rent=9.0), machine("1x H200", 5.0, rent=1.0, marked=True)
    both = appraised(healthy, marked, budget=1e6)
    assert [both.order, both.answer.fastest_in_budget] == [(0, 1), healthy.options(1.0)[0]]
    poor = appraised(healthy, marked, budget=200)  # the healthy one costs 2,160
    assert poor.answer.fastest_in_budget == marked.options(1.0)[0]


def test_machines_without_prices_are_ranked_and_answer_nothing() -> None:
    found = appraised(machine("b", 20.0), machine("a", 10.0), budget=1.0, deadline_days=15.0)
    assert found.order == (1, 0)
    assert [one.in_time for one in found.machines] == ["yes", "no"]
    assert all(one.offers == () for one in found.machines)
    assert (found.nothing_in_budget, found.nothing_in_time) == (False, False)


def test_a_run_that_never_ends_has_no_cost_and_misses_every_deadline() -> None:
    never, ends = machine("a", math.inf, price=1.0, rent=1.0), machine("b", 10.0, rent=2.0)
    found = appraised(never, ends, budget=1e9, deadline_days=1e9)
    assert found.order == (1, 0)
    assert [one.in_time for one in found.machines] == ["yes", "no"]
    assert [len(one.offers) for one in found.machines] == [1, 0]


def test_less_use_of_a_life_makes_each_run_dearer_and_the_life_too_short() -> None:
    busy, idle = (
        appraised(machine(price=1_825.0), runs=100, utilisation=share).machines[0].offers[0]
        for share in (1.0, 0.5)
    )
    assert (busy.run_cost, idle.run_cost) == (10.0, 20.0)
    assert (busy.outlived, idle.outlived) == (False, True)


def test_days_on_which_an_own_machine_idles_are_paid_by_those_on_which_it_trains() -> None:
    """Ten days of a life of 1,825, of which the machine trains half: $20 of its price and $60 of upkeep."""
    (only,) = appraised(machine(price=1_825.0, electricity=7.0, upkeep=3.0), utilisation=0.5).machines
    assert only.offers[0].run_cost == pytest.approx(20 + 7 + 60)


FREE = {"price": None, "rent": None}
RENT = {"rent": 1.0}  # $240 for ten days


@pytest.mark.parametrize(
    ("days_and_prices", "budget", "nothing_in_time"),
    [
        ([(10.0, FREE)], None, False),
        ([(20.0, FREE)], None, True),
        ([(10.0, FREE), (20.0, RENT)], None, False),  # without a budget, no price is needed
        ([(10.0, FREE), (20.0, RENT)], 1e6, True),  # the machine in time has no price
        ([(10.0, FREE), (20.0, FREE)], 1.0, False),  # nothing has a price that a budget could be held against
        ([(10.0, RENT), (20.0, RENT)], 240.0, False),
        ([(10.0, RENT), (20.0, RENT)], 239.0, True),
    ],
)
def test_nothing_is_in_time_if_none_that_the_budget_allows_is(
    days_and_prices: list[tuple[float, dict[str, float]]], budget: float | None, nothing_in_time: bool
) -> None:
    machines = [machine(f"{days:g}", days, **prices) for days, prices in days_and_prices]
    limits = {} if budget is None else {"budget": budget}
    assert appraised(*machines, deadline_days=15.0, **limits).nothing_in_time == nothing_in_time
    assert not appraised(*machines, **limits).nothing_in_time  # nobody asked


def test_nothing_is_appraised_without_machines() -> None:
    found = appraised(budget=1.0, deadline_days=1.0)
    assert (found.order, found.machines) == ((), ())
    assert not (found.nothing_in_budget or found.nothing_in_time)


def test_the_vectors_of_the_report_have_every_edge_and_every_verdict_many_times() -> None:
    """tests/e2e/test_what_if.py holds the report's script against them."""
    seen = Counter(word for one in inputs(10_000, SEED) for word in words_on(one, one.appraised()))
    assert len(seen) == 25, sorted(seen)
    assert min(seen.values()) >= 100, seen


def words_on(one: AppraisalInput, found: Appraisal) -> Iterator[str]:
    """Yield the edges of an input, and the verdicts on it, each as often as it occurs."""
    for machine in found.machines:
        yield f"in time: {machine.in_time}"
        for offer in machine.offers:
            yield from offer.marks
            yield f"in budget: {offer.in_budget}"
            named = ("outlived", "on_frontier", "break_even", "rent_always_less")
            yield from (name for name in named if getattr(offer, name))
    yield from (name for name in ("nothing_in_budget", "nothing_in_time") if getattr(found, name))
    limits, offers = one.wish, [offer for machine in found.machines for offer in machine.offers]
    ranks, days = [machine.place.rank for machine in found.machines], [m.days for m in one.machines]
    marked = [m for i, m in zip(found.order, found.machines, strict=True) if one.machines[i].marked]
    edges = {
        "equal ranks": len(set(ranks)) < len(ranks),
        "equal days": len({figure.value for figure in days}) < len(days),
        "without a price": any(m.price is None and m.rent is None for m in one.machines),
        "without an end": any(math.isinf(figure.value) for figure in days),
        "without a machine": not one.machines,
        "marked and an answer": any(offer.marks for m in marked for offer in m.offers),
        "ends at the deadline": any(d.value + d.half_width == limits.deadline_days for d in days),
        "costs the budget": any(offer.spend == limits.budget for offer in offers),
    }
    yield from (name for name, true in edges.items() if true)

"""Rules for recommendations that must hold for any machines, prices and requests."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.records.estimate import Interval
from bench.records.spread import on_another_day, on_another_machine, shipped_spreads
from bench.report.compare.decision import (
    BreakEven,
    Option,
    Recommendation,
    Wish,
    _surely_more,
    break_even,
    decide,
    differs,
    frontier,
    meets,
    places,
    ratio,
)

money = st.floats(0.01, 1e7)
days = st.builds(Interval, st.floats(0.01, 1e4), st.floats(0, 10))


@st.composite
def options(draw: st.DrawFn) -> list[Option]:
    made = []
    for i in range(draw(st.integers(1, 12))):
        buys = draw(st.booleans())
        upfront = draw(money) if buys else 0.0
        made.append(Option(f"m{i}", "buy" if buys else "rent", draw(days), upfront, draw(money)))
    return made


runs = st.integers(1, 50)


def beats(a: Option, b: Option, wish: Wish) -> bool:
    """Return whether one option is cheaper and faster than another."""
    return a.spend(wish.runs) < b.spend(wish.runs) and a.days.value < b.days.value


@given(options(), money, st.floats(0.01, 1e4), runs)
def test_a_cheaper_and_faster_machine_is_never_recommended_against(
    every: list[Option], budget: float, deadline: float, count: int
) -> None:
    wish = Wish(budget, deadline, count)
    answer = decide(every, wish)
    for chosen in (answer.fastest_in_budget, answer.as_fast_for_less):
        assert chosen is None or not any(beats(other, chosen, wish) for other in every)
    in_time = [o for o in every if meets(o.days, deadline) == "yes"]
    for chosen in (answer.cheapest_by_deadline, answer.as_cheap_but_faster):
        assert chosen is None or not any(beats(other, chosen, wish) for other in in_time)


@given(options(), money, st.floats(1, 100), runs)
def test_raising_the_budget_never_worsens_the_answer(
    every: list[Option], budget: float, factor: float, count: int
) -> None:
    poor = decide(every, Wish(budget, None, count)).fastest_in_budget
    rich = decide(every, Wish(budget * factor, None, count)).fastest_in_budget
    if poor is not None:
        assert rich is not None
        assert rich.days.value <= poor.days.value


@given(options(), money, st.floats(1, 100), st.floats(0.01, 1e4))
def test_raising_the_budget_never_makes_a_deadline_more_expensive(
    every: list[Option], budget: float, factor: float, deadline: float
) -> None:
    poor = decide(every, Wish(budget, deadline)).cheapest_by_deadline
    rich = decide(every, Wish(budget * factor, deadline)).cheapest_by_deadline
    if poor is not None:
        assert rich is not None
        assert rich.spend() <= poor.spend()


@given(options(), st.floats(0.01, 1e4), st.floats(1, 100))
def test_a_later_deadline_never_costs_more(every: list[Option], deadline: float, factor: float) -> None:
    soon = decide(every, Wish(None, deadline)).cheapest_by_deadline
    late = decide(every, Wish(None, deadline * factor)).cheapest_by_deadline
    if soon is not None:
        assert late is not None
        assert late.spend() <= soon.spend()


@given(options(), money, st.floats(0.01, 1e4), st.randoms())
def test_the_order_of_the_bundles_does_not_matter(
    every: list[Option], budget: float, deadline: float, random: object
) -> None:
    wish = Wish(budget, deadline)
    shuffled = every[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decide(every, wish) == decide(shuffled, wish)


def test_of_two_equal_options_the_one_with_the_narrower_interval_is_named_in_any_order() -> None:
    cheapest = Option("slow", "rent", Interval(3.0, 0.0), 0.0, 100.0)
    narrow, wide = (
        Option(label, "rent", Interval(1.0, half), 0.0, 100.2) for label, half in (("b", 0.1), ("a", 0.2))
    )
    for two in ([narrow, wide], [wide, narrow]):
        assert decide([cheapest, *two], Wish(200.0, 4.0)).as_cheap_but_faster == narrow


@given(options(), money, st.floats(0.01, 1e4), st.sampled_from([0.5, 2.0, 4.0]))
def test_the_currency_does_not_matter(
    every: list[Option], budget: float, deadline: float, rate: float
) -> None:
    def worth(option: Option) -> Option:
        return dataclasses.replace(option, upfront=option.upfront * rate, a_run=option.a_run * rate)

    def names(all_of: list[Option], wish: Wish) -> list[str | None]:
        answer = decide(all_of, wish)
        chosen = (answer.fastest_in_budget, answer.cheapest_by_deadline, answer.as_fast_for_less)
        return [one and one.label for one in chosen]

    converted = [worth(option) for option in every]
    assert names(every, Wish(budget, deadline)) == names(converted, Wish(budget * rate, deadline))


@given(options(), money, runs)
def test_what_is_recommended_is_affordable_and_something_affordable_is_recommended(
    every: list[Option], budget: float, count: int
) -> None:
    chosen = decide(every, Wish(budget, None, count)).fastest_in_budget
    affordable = [o for o in every if o.spend(count) <= budget]
    assert (chosen in affordable) if affordable else (chosen is None)


@given(st.lists(st.tuples(money, st.floats(0.01, 1e4)), max_size=30))
def test_the_frontier_beats_all_that_is_not_on_it_and_nothing_on_it_is_beaten(
    points: list[tuple[float, float]],
) -> None:
    best = frontier(points, lambda p: p[0], lambda p: p[1])
    assert all(any(b[0] <= p[0] and b[1] <= p[1] for b in best) for p in points)
    assert not any(a[0] <= b[0] and a[1] <= b[1] for a in best for b in best if a is not b)


def test_only_requested_questions_are_answered() -> None:
    answer = decide([Option("m", "rent", Interval(1, 0), 0, 1)], Wish())
    assert (answer.fastest_in_budget, answer.cheapest_by_deadline) == (None, None)


def test_if_two_machines_are_not_provably_different_the_cheaper_is_named_too() -> None:
    dear = Option("dear", "buy", Interval(10.0, 0.5), 200_000, 0)
    cheap = Option("cheap", "buy", Interval(10.2, 0.5), 100_000, 0)
    slow = Option("slow", "buy", Interval(20.0, 0.5), 10_000, 0)
    answer = decide([dear, cheap, slow], Wish(budget=300_000))
    assert (answer.fastest_in_budget, answer.as_fast_for_less) == (dear, cheap)


@pytest.mark.parametrize(
    ("deadline", "expected"),
    [(11.0, "yes"), (10.51, "yes"), (10.49, "perhaps"), (9.51, "perhaps"), (9.49, "no"), (9.0, "no")],
)
def test_a_deadline_inside_the_interval_is_perhaps_met(deadline: float, expected: str) -> None:
    assert meets(Interval(10.0, 0.5), deadline) == expected


def test_an_owned_machine_lives_for_so_many_runs_and_a_rented_one_for_any() -> None:
    owned, rented = (Option("m", kind, Interval(10.0, 0.0), 0.0, 1.0) for kind in ("buy", "rent"))
    assert (owned.lives_for(3, 30.0), owned.lives_for(3, 29.9)) == (True, False)
    assert rented.lives_for(3, 29.9)


def test_if_two_machines_cost_the_same_the_faster_is_named_too() -> None:
    """Two GPUs have twice the rent and just under half the time: one saves 0.1% and takes twice as long."""
    one = Option("1x", "rent", Interval(7.736, 0.137), 0, 649.81)
    two = Option("2x", "rent", Interval(3.872, 0.066), 0, 650.55)
    eight = Option("8x", "rent", Interval(1.2, 0.02), 0, 900)
    answer = decide([one, two, eight], Wish(deadline_days=14))
    assert (answer.cheapest_by_deadline, answer.as_cheap_but_faster) == (one, two)
    assert decide([one, two, eight], Wish(deadline_days=5)).as_cheap_but_faster is None  # two is cheapest
    assert decide([one, eight], Wish(deadline_days=14)).as_cheap_but_faster is None
    bought = Option("2x", "buy", Interval(3.872, 0.066), 649_900, 0)  # a price has no interval
    cheap = Option("1x", "buy", Interval(7.736, 0.137), 649_810, 0)
    assert decide([cheap, bought], Wish(deadline_days=14)).as_cheap_but_faster is None


def test_another_day_and_another_machine_are_less_certain_than_the_run_itself() -> None:
    """However narrow the interval of a run is, cards of one kind differ, and less so the days of one card."""
    tight, spreads = Interval(10.0, 0.001), shipped_spreads()
    day, machine = on_another_day(tight), on_another_machine(tight)
    assert tight.half_width < tight.of_another_process.half_width < day.half_width < machine.half_width
    assert day.half_width == pytest.approx(1.96 * 10 * spreads.another_day, rel=1e-4)
    assert machine.half_width == pytest.approx(1.96 * 10 * spreads.another_machine, rel=1e-4)
    assert on_another_day(Interval(10.0, 3.0)).half_width == pytest.approx(3.0, rel=0.01)


def test_owning_breaks_even_where_the_saved_rent_has_paid_for_the_machine() -> None:
    own = Option("m", "buy", Interval(10.0, 0.1), 90_000, 100.0)
    rent = Option("m", "rent", Interval(5.0, 0.1), 0.0, 1_000.0)
    even = break_even(own, rent, life_days=1825)
    assert even is not None
    assert even.runs == 100
    assert own.spend(100) == rent.spend(100)
    assert even.utilisation == pytest.approx(100 * 10 / 1825)
    assert even.reachable()


@given(money, money, money)
def test_owning_never_breaks_even_against_a_rent_below_its_own_electricity(
    price: float, electricity: float, rent: float
) -> None:
    own = Option("m", "buy", Interval(10.0, 0.1), price, electricity)
    assert (break_even(own, Option("m", "rent", Interval(10.0, 0.1), 0, rent), 1825) is None) == (
        rent <= electricity
    )


def test_runs_are_whole_ones_and_a_life_must_hold_the_last_of_them() -> None:
    own = Option("m", "buy", Interval(900.0, 1.0), 20_100, 0.0)
    rent = Option("m", "rent", Interval(900.0, 1.0), 0.0, 10_000.0)
    even = break_even(own, rent, life_days=1825)
    assert even is not None
    assert (even.runs, even.reachable()) == (3, False)  # the life holds 2.01 runs
    assert own.spend(3) < rent.spend(3)
    assert own.spend(2) > rent.spend(2)


def test_runs_that_take_exactly_the_used_share_of_a_life_are_reachable() -> None:
    half = BreakEven(runs=2, utilisation=0.5)
    assert [half.reachable(share) for share in (0.51, 0.5, 0.49)] == [True, True, False]


def test_a_rent_that_costs_little_more_than_an_owned_run_pays_for_the_machine_too() -> None:
    """Each run saves 50 cents, so $100 are paid back by 200 runs."""
    own = Option("m", "buy", Interval(1.0, 0.1), 100, 1.0)
    even = break_even(own, Option("m", "rent", Interval(1.0, 0.1), 0, 1.5), 1825)
    assert even is not None
    assert even.runs == 200


def test_more_runs_than_one_life_holds_are_not_reachable() -> None:
    own = Option("m", "buy", Interval(100.0, 1.0), 90_000, 0.0)
    even = break_even(own, Option("m", "rent", Interval(100.0, 1.0), 0.0, 1_000.0), 1825)
    assert even is not None
    assert not even.reachable()


def test_a_run_costs_its_share_of_the_machines_life_as_in_the_paper() -> None:
    # Section 4.1: 8 A100 train Pythia-1B in 9 days for about $800, 4 H100 in 8 for about $600.
    a100 = Option("8x A100", "buy", Interval(9, 0), 8 * 19_000 + 10_500, 0)
    h100 = Option("4x H100", "buy", Interval(8, 0), 4 * 30_000 + 7_500, 0)
    assert a100.run_cost(5 * 365) == pytest.approx(801, abs=1)
    assert h100.run_cost(5 * 365) == pytest.approx(559, abs=1)
    assert h100.run_cost(5 * 365, utilisation=0.5) == pytest.approx(2 * h100.run_cost(5 * 365))


def test_machines_not_provably_slower_than_the_leader_share_its_rank() -> None:
    found = places([Interval(10, 0.5), Interval(10.4, 0.5), Interval(11, 0.5), Interval(11.2, 0.5)])
    assert [place.rank for place in found] == [1, 1, 3, 3]
    assert found[0].slower is None
    assert found[2].slower == ratio(Interval(11, 0.5), Interval(10, 0.5))


def test_the_first_figure_with_a_mark_begins_a_rank_however_close_it_is() -> None:
    alike = [Interval(10, 0.5)] * 4
    ranks = {sound: [place.rank for place in places(alike, sound)] for sound in (None, 4, 2, 0)}
    assert ranks == {None: [1, 1, 1, 1], 4: [1, 1, 1, 1], 2: [1, 1, 3, 3], 0: [1, 1, 1, 1]}


def test_equal_machines_get_equal_ranks_about_as_often_as_stated() -> None:
    """Each figure is of one machine of its kind; within a run the steps scatter far less."""
    draw = random.Random(1)
    told_apart = 0
    for _ in range(2000):
        spread = 10.0 * shipped_spreads().another_machine
        one, other = (Interval(draw.gauss(10.0, spread), 0.01) for _ in range(2))
        told_apart += differs(on_another_machine(one), on_another_machine(other))
    assert 0.03 < told_apart / 2000 < 0.07


@given(days, days)
def test_a_difference_is_symmetric_and_zero_to_itself(a: Interval, b: Interval) -> None:
    assert differs(a, b) == differs(b, a)
    assert not differs(a, a)
    assert not math.isnan(ratio(a, b).half_width)


@pytest.mark.parametrize(
    ("option", "utilisation", "cost"),
    [
        (Option("m", "buy", Interval(73.0, 1.0), 10_000, 0), 1.0, 400),  # 73 of 1,825 days
        (Option("m", "buy", Interval(73.0, 1.0), 10_000, 262.80), 1.0, 662.80),
        (Option("m", "buy", Interval(73.0, 1.0), 10_000, 262.80), 0.5, 1062.80),
        (Option("m", "rent", Interval(73.0, 1.0), 0, 3504), 1.0, 3504),
        (Option("m", "rent", Interval(73.0, 1.0), 0, 3504), 0.5, 3504),
    ],
)
def test_a_run_costs_its_share_of_the_machine_and_its_electricity_or_its_rent(
    option: Option, utilisation: float, cost: float
) -> None:
    assert option.run_cost(1825, utilisation) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("days", "upfront", "a_run", "runs", "spend", "half_width"),
    [
        (Interval(10.0, 0.5), 0, 100, 1, 100, 5.0),
        (Interval(10.0, 0.5), 0, 100, 10, 1000, 50.0),
        (Interval(10.0, 0.5), 5000, 10, 10, 5100, 5.0),  # the machine's price is certain
    ],
)
def test_the_spend_of_all_runs_is_as_uncertain_as_their_paid_hours(
    days: Interval, upfront: float, a_run: float, runs: int, spend: float, half_width: float
) -> None:
    found = Option("m", "rent", days, upfront, a_run).spend_interval(runs)
    assert (found.value, found.half_width) == pytest.approx((spend, half_width), rel=1e-5)


@pytest.mark.parametrize(("a_run", "named"), [(1013, True), (1015, False)])
@pytest.mark.parametrize("runs", [1, 10])
def test_a_faster_option_is_as_cheap_up_to_its_interval(a_run: float, named: bool, runs: int) -> None:
    """Two rents of $1,000 that are known to 1% differ provably from $13.9 on: hypot(9.8, 9.9)."""
    slow = Option("slow", "rent", Interval(10.0, 0.098), 0, 1000)
    fast = Option("fast", "rent", Interval(5.0, 0.049), 0, a_run)
    answer = decide([slow, fast], Wish(deadline_days=14, runs=runs))
    assert answer.cheapest_by_deadline == slow
    assert answer.as_cheap_but_faster == (fast if named else None)


@pytest.mark.parametrize(("budget", "named"), [(50_000, True), (49_999, False)])
def test_the_cheapest_by_the_deadline_is_within_the_budget(budget: float, named: bool) -> None:
    fast = Option("fast", "buy", Interval(5.0, 0.1), 50_000, 0)
    slow = Option("slow", "buy", Interval(20.0, 0.1), 10_000, 0)
    answer = decide([fast, slow], Wish(budget, deadline_days=10))
    assert answer.cheapest_by_deadline == (fast if named else None)


def test_a_wide_interval_does_not_make_a_beaten_option_as_fast_for_less() -> None:
    fast = Option("fast", "buy", Interval(10.0, 0.1), 100_000, 0)
    slow = Option("slow", "buy", Interval(11.0, 0.1), 50_000, 0)
    beaten = Option("beaten", "buy", Interval(11.5, 3.0), 60_000, 0)  # than slow: slower and dearer
    assert decide([fast, beaten], Wish(budget=200_000)).as_fast_for_less == beaten
    assert decide([fast, slow, beaten], Wish(budget=200_000)).as_fast_for_less is None


def test_a_wide_interval_does_not_make_a_beaten_option_as_cheap_but_faster() -> None:
    cheap = Option("cheap", "rent", Interval(20.0, 0.1), 0, 100)
    fast = Option("fast", "rent", Interval(10.0, 0.1), 0, 120)
    beaten = Option("beaten", "rent", Interval(11.0, 3.0), 0, 125)  # than fast: slower and dearer
    assert decide([cheap, beaten], Wish(deadline_days=30)).as_cheap_but_faster == beaten
    assert decide([cheap, fast, beaten], Wish(deadline_days=30)).as_cheap_but_faster is None


@pytest.mark.parametrize(("days", "expected"), [(10.49, False), (10.51, True)])
def test_two_times_differ_if_they_are_farther_apart_than_both_half_widths(
    days: float, expected: bool
) -> None:
    """The half-widths of 0.3 and 0.4 are together 0.5."""
    assert differs(Interval(10.0, 0.3), Interval(days, 0.4)) == expected


def test_a_ratio_is_as_uncertain_as_both_of_its_times() -> None:
    """The ratio 1.1 is uncertain by 6.8%: its times are by 4.55% and 5%."""
    found = ratio(Interval(11.0, 0.5), Interval(10.0, 0.5))
    assert (found.value, found.half_width) == pytest.approx((1.1, 0.074330), rel=1e-4)


def test_a_deadline_at_either_end_of_the_interval_itself() -> None:
    days = Interval(10.0, 0.5)
    half_width = days.half_width
    first, last = 10.0 - half_width, 10.0 + half_width
    assert (meets(days, last), meets(days, math.nextafter(last, 0))) == ("yes", "perhaps")
    assert (meets(days, first), meets(days, math.nextafter(first, 0))) == ("perhaps", "no")


def test_of_several_options_that_are_as_fast_the_cheapest_is_named() -> None:
    fast = Option("fast", "buy", Interval(10.0, 0.5), 100_000, 0)
    cheap = Option("cheap", "buy", Interval(10.2, 0.5), 60_000, 0)
    cheaper = Option("cheaper", "buy", Interval(10.3, 0.5), 50_000, 0)
    for options in ([fast, cheap, cheaper], [cheaper, cheap, fast]):
        assert decide(options, Wish(budget=200_000)).as_fast_for_less == cheaper


def test_an_option_that_is_not_provably_faster_is_not_named_as_faster() -> None:
    cheap = Option("cheap", "rent", Interval(10.2, 0.5), 0, 100)
    equal = Option("equal", "rent", Interval(10.0, 0.5), 0, 101)
    faster = Option("faster", "rent", Interval(8.0, 0.5), 0, 102)
    assert decide([cheap, equal], Wish(deadline_days=14)).as_cheap_but_faster is None
    assert decide([cheap, equal, faster], Wish(deadline_days=14)).as_cheap_but_faster == faster


def test_of_several_options_that_are_as_cheap_and_faster_the_fastest_is_named() -> None:
    cheap = Option("cheap", "rent", Interval(12.0, 0.5), 0, 100)
    faster = Option("faster", "rent", Interval(8.0, 0.5), 0, 101)
    fastest = Option("fastest", "rent", Interval(5.0, 0.5), 0, 102)
    for options in ([cheap, faster, fastest], [fastest, faster, cheap]):
        assert decide(options, Wish(deadline_days=14)).as_cheap_but_faster == fastest


def test_money_is_surely_more_beyond_both_half_widths_and_not_at_them() -> None:
    assert not _surely_more(Interval(13.0, 3.0), Interval(8.0, 4.0))
    assert _surely_more(Interval(13.001, 3.0), Interval(8.0, 4.0))
    assert not _surely_more(Interval(8.0, 4.0), Interval(13.001, 3.0))


def test_an_option_is_for_one_run_unless_more_are_asked_for() -> None:
    option = Option("a", "buy", Interval(10.0, 0.5), 1000.0, 7.0)
    assert (option.spend(), option.spend(3)) == (1007.0, 1021.0)
    assert (option.spend_interval().value, option.spend_interval(3).value) == (1007.0, 1021.0)


def test_each_question_is_answered_by_the_first_that_has_an_answer() -> None:
    a, b, c, d, e = (Option(name, "rent", Interval(1, 0), 0.0, 1.0) for name in "abcde")
    by_budget, by_deadline = Recommendation(a, None, b, None), Recommendation(None, c, None, d)
    other = Recommendation(e, e, e, e)
    assert by_budget.or_else(other) == Recommendation(a, e, b, e)
    assert by_deadline.or_else(other) == Recommendation(e, c, e, d)
    nobody = Recommendation(None, None, None, None)
    assert nobody.or_else(other) == other
    assert other.or_else(nobody) == other

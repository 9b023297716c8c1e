"""Made-up machines to rent or buy: the answer to each question, and each limit that would change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.report.compare.answers import AnswerInputs, Change, MachineAnswer, answers_of
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.decision import Option, Rank, Recommendation, Wish
from bench.report.compare.extrapolate import Guess
from bench.report.compare.offers import Terms
from bench.report.compare.priced_guesses import price_guesses
from bench.report.compare.prices import MachinePrice, PriceBook, Rent
from tests.report.made import bundle
from tests.report.test_comparing import compared, only

QUOTED = ("2026-06-01", "a quote")
HOT = Mark("SLOWED", "a GPU was too hot", 0.5)
Pair = tuple[RankedRow, Option]
Machine = Callable[..., Pair]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Make machines with days of a run, and a cost: of each run if rented, once if bought."""
    one = bundle(tmp_path_factory.mktemp("made") / "a.tar")
    row = only(compared(one)).entries[0].row

    def make(
        label: str, days: float, cost: float, *, half: float = 0.1, kind: str = "rent", hot: bool = False
    ) -> Pair:
        days_of = Interval(days, half)
        mine = replace(row, best=replace(row.best, days=days_of), marks=(HOT,) if hot else ())
        bought = kind == "buy"
        option = Option(
            label, "buy" if bought else "rent", days_of, cost if bought else 0.0, 0.0 if bought else cost
        )
        return mine, option

    return make


def answer(
    pairs: Sequence[Pair], guesses: Sequence[Guess] = (), book: PriceBook | None = None, **wish: float
) -> dict[str, MachineAnswer]:
    """Return the answers to a wish by their questions."""
    terms = Terms(book or PriceBook("USD"), Wish(**wish))  # type: ignore[arg-type]
    nothing = Recommendation(None, None, None, None)
    priced = price_guesses(guesses, terms, nothing, set())
    rows = [row for row, _ in pairs]
    found = answers_of(AnswerInputs(rows, [Rank(1, None) for _ in rows], pairs, priced, terms))
    return {one.question: one for one in found}


def told(changes: Sequence[Change]) -> list[tuple[str, str, float, str | None]]:
    return [(one.limit, one.side, round(one.value, 6), one.choice and one.choice.machine) for one in changes]


def test_a_deadline_changes_the_answer_where_a_cheaper_machine_is_in_time_or_this_one_no_longer_is(
    machine: Machine,
) -> None:
    pairs = [machine("fast", 5.0, 300.0), machine("slow", 9.0, 200.0), machine("slower", 20.0, 100.0)]
    found = answer(pairs, deadline_days=10.0)["cheapest by the deadline"]
    assert (found.choice and found.choice.machine, found.certain) == ("slow", "yes")
    assert told(found.changes) == [
        ("deadline", "from", 20.1, "slower"),
        ("deadline", "under", 9.1, "fast"),
    ]


def test_a_deadline_of_less_than_a_day_changes_the_answer_too(machine: Machine) -> None:
    pairs = [machine("fast", 0.2, 3.0, half=0.01), machine("slow", 0.4, 2.0, half=0.01)]
    found = answer(pairs, deadline_days=0.5)["cheapest by the deadline"]
    assert told(found.changes) == [("deadline", "under", 0.41, "fast")]


@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        (100.0, [("deadline", "from", 20.1, "slow")]),  # all of the budget
        (99.0, []),
        (1e9, [("deadline", "from", 20.1, "slow")]),
    ],
)
def test_a_later_deadline_changes_the_answer_only_to_a_machine_within_the_budget(
    machine: Machine, budget: float, changes: list[tuple[str, str, float, str]]
) -> None:
    found = answer([machine("slow", 20.0, 100.0)], deadline_days=10.0, budget=budget)
    assert told(found["cheapest by the deadline"].changes) == changes


def test_of_two_machines_that_cost_the_same_a_later_deadline_does_not_change_to_the_slower(
    machine: Machine,
) -> None:
    pairs = [machine("fast", 5.0, 200.0), machine("slow", 20.0, 200.0)]
    found = answer(pairs, deadline_days=10.0)["cheapest by the deadline"]
    assert told(found.changes) == [("deadline", "under", 5.1, None)]


def test_a_budget_changes_the_answer_where_a_faster_machine_is_within_it_or_this_one_no_longer_is(
    machine: Machine,
) -> None:
    pairs = [machine("fast", 5.0, 300.0), machine("slow", 9.0, 200.0), machine("slower", 20.0, 0.5)]
    found = answer(pairs, budget=250.0)["fastest in budget"]
    assert (found.choice and found.choice.machine, found.certain) == ("slow", "yes")
    assert told(found.changes) == [("budget", "from", 300.0, "fast"), ("budget", "under", 200.0, "slower")]
    cheap = answer(pairs, budget=0.75)["fastest in budget"]
    assert told(cheap.changes) == [("budget", "from", 200.0, "slow"), ("budget", "under", 0.5, None)]


def test_of_two_machines_that_are_as_fast_a_larger_budget_does_not_change_to_the_dearer(
    machine: Machine,
) -> None:
    pairs = [machine("cheap", 5.0, 200.0), machine("dear", 5.0, 300.0)]
    found = answer(pairs, budget=250.0)["fastest in budget"]
    assert told(found.changes) == [("budget", "under", 200.0, None)]


def test_an_answer_with_a_mark_changes_to_any_machine_without_that_comes_within_the_limit(
    machine: Machine,
) -> None:
    """A dearer one by a later deadline, a slower one by a larger budget."""
    marked = machine("hot", 5.0, 100.0, hot=True)
    later = answer([marked, machine("sound", 20.0, 200.0)], deadline_days=10.0)
    assert told(later["cheapest by the deadline"].changes)[0] == ("deadline", "from", 20.1, "sound")
    dearer = answer([marked, machine("sound", 20.0, 200.0)], budget=150.0)
    assert told(dearer["fastest in budget"].changes)[0] == ("budget", "from", 200.0, "sound")


def test_no_limit_that_is_kept_already_changes_the_answer(machine: Machine) -> None:
    """Both machines have marks: the cheaper and slower one could answer only a smaller budget."""
    pairs = [machine("fast", 5.0, 300.0, hot=True), machine("slow", 9.0, 200.0, hot=True)]
    found = answer(pairs, budget=400.0)["fastest in budget"]
    assert told(found.changes) == [("budget", "under", 300.0, "slow")]
    by_deadline = answer(pairs, deadline_days=10.0)["cheapest by the deadline"]
    assert told(by_deadline.changes) == [("deadline", "under", 9.1, "fast")]


def test_a_machine_without_a_price_is_in_time_unless_a_budget_asks_for_one(machine: Machine) -> None:
    """The slow one has a price and is late: nothing is said about when it would be in time."""
    (free, _), slow = machine("free", 5.0, 0.0), machine("slow", 20.0, 100.0)
    terms = Terms(PriceBook("USD"), Wish(deadline_days=10.0))
    (found,) = answers_of(AnswerInputs([free, slow[0]], [Rank(1, None), Rank(2, None)], [slow], (), terms))
    assert found.choice is not None
    assert (found.choice.days, found.choice.kind, found.certain, found.changes) == (5.0, None, "yes", ())
    asked_to_pay = replace(terms, wish=Wish(deadline_days=10.0, budget=50.0))
    ranks = [Rank(1, None), Rank(2, None)]
    paid, _ = answers_of(AnswerInputs([free, slow[0]], ranks, [slow], (), asked_to_pay))
    assert (paid.choice, paid.certain) == (None, "no")


@pytest.mark.parametrize(
    ("first_hot", "second_hot", "named"),
    [(False, False, "cheap"), (True, False, "dear"), (False, True, "cheap"), (True, True, "cheap")],
)
def test_the_cheapest_to_rent_is_one_without_a_mark_if_there_is_one(
    machine: Machine, first_hot: bool, second_hot: bool, named: str
) -> None:
    pairs = [
        machine("cheap", 9.0, 100.0, hot=first_hot),
        machine("dear", 5.0, 200.0, hot=second_hot),
        machine("bought", 5.0, 50.0, kind="buy"),
    ]
    found = answer(pairs)["cheapest to rent"]
    assert (found.choice and found.choice.machine, found.certain) == (named, "yes")


B200 = ("NVIDIA B200",)
GUESS = Guess("NVIDIA B200", 8, 0.5, 1.0, 0.8, 1.25, 0, "a test")


@pytest.mark.parametrize(
    ("book", "kind", "upfront", "run_cost", "spend"),
    [
        (PriceBook("USD"), None, 0.0, None, None),
        (PriceBook("USD", rents=(Rent(B200, 2.0, *QUOTED),)), "rent", 0.0, 384.0, 768.0),  # 8 GPUs, 24 hours
        (
            PriceBook("USD", machines=(MachinePrice(B200, 8, 182_500, *QUOTED),)),
            "buy",
            182_500.0,
            100.0,
            182_500.0,
        ),
    ],
)
def test_an_estimate_tells_what_it_costs(
    machine: Machine,
    book: PriceBook,
    kind: str | None,
    upfront: float,
    run_cost: float | None,
    spend: float | None,
) -> None:
    """Two runs of a day each; a machine lives for 1,825 days."""
    found = answer([machine("slow", 20.0, 100.0)], [GUESS], book, deadline_days=1.3, runs=2)
    choice = found["cheapest by the deadline"].choice
    assert choice is not None
    assert (choice.machine, choice.kind, choice.upfront) == ("8x B200", kind, upfront)
    assert (choice.run_cost, choice.spend) == (run_cost, spend)


def test_an_estimate_without_a_price_answers_no_budget(machine: Machine) -> None:
    found = answer([machine("slow", 20.0, 100.0)], [GUESS], deadline_days=1.3, budget=1e6)
    assert found["cheapest by the deadline"].estimate is None
    assert found["cheapest by the deadline"].choice is None
    assert found["fastest in budget"].estimate is None


def test_an_estimate_without_days_answers_nothing(machine: Machine) -> None:
    unknown = replace(GUESS, days=None, low_days=None, high_days=None)
    found = answer([machine("slow", 20.0, 100.0)], [unknown], deadline_days=1.3)["cheapest by the deadline"]
    assert (found.choice, found.estimate, found.certain) == (None, None, "no")


def test_an_estimate_that_costs_more_than_a_measured_answer_is_not_told_as_one_without_a_price(
    machine: Machine,
) -> None:
    pairs = [machine("slow", 20.0, 100.0)]
    terms = Terms(PriceBook("USD", rents=(Rent(B200, 2.0, *QUOTED),)), Wish(deadline_days=30.0))
    measured = Recommendation(None, pairs[0][1], None, None)
    priced = price_guesses([GUESS], terms, measured, set())
    (found,) = answers_of(AnswerInputs([pairs[0][0]], [Rank(1, None)], pairs, priced, terms))
    assert (found.choice and found.choice.machine, found.estimate) == ("slow", None)


def test_a_later_deadline_changes_to_a_faster_machine_that_costs_the_same_once_it_is_surely_in_time(
    machine: Machine,
) -> None:
    pairs = [machine("sure", 5.0, 200.0), machine("unsure", 4.0, 200.0, half=9.0)]
    found = answer(pairs, deadline_days=10.0)["cheapest by the deadline"]
    assert told(found.changes)[0] == ("deadline", "from", 13.0, "unsure")


@pytest.mark.parametrize(("budget", "certain"), [(202.0, "yes"), (201.9, "perhaps"), (200.0, "perhaps")])
def test_a_choice_is_surely_in_the_budget_if_the_upper_end_of_its_spend_is(
    machine: Machine, budget: float, certain: str
) -> None:
    """A rent of $200, of days that are known to 1%."""
    found = answer([machine("m", 10.0, 200.0, half=0.1)], budget=budget)["fastest in budget"]
    assert found.certain == certain

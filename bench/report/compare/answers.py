"""Answer the user's questions about one group: what to rent or buy, how sure, what would change it.

In: ranked rows with their options, guesses and terms. Out: a `MachineAnswer` to each question. Pure.
To find what would change an answer, the question is asked again with other deadlines or budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.records.spread import on_another_machine
from bench.report.compare.appraisal import recommend
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.decision import (
    Certainty,
    Option,
    Rank,
    Recommendation,
    meets,
    within,
    without_marks,
)
from bench.report.compare.offers import Terms
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess

Question = Literal["cheapest by the deadline", "fastest in budget", "fastest", "cheapest to rent"]
Pairs = Sequence[tuple[RankedRow, Option]]


@dataclass(frozen=True, slots=True)
class Choice:
    """A machine with its days and costs, measured or estimated."""

    machine: str
    measured: bool
    kind: Literal["buy", "rent"] | None  # None: it has no price
    days: float
    low_days: float | None
    high_days: float | None
    upfront: float  # to buy it
    run_cost: float | None  # of one run
    spend: float | None  # for all runs that were asked for
    doubts: tuple[str, ...] = ()  # about its figure: marks, an incomplete search


@dataclass(frozen=True, slots=True)
class Change:
    """A limit beyond which the answer is another one."""

    limit: Literal["deadline", "budget"]
    side: Literal["from", "under"]  # the change comes from this value on, or under it
    value: float  # days, or money
    choice: Choice | None  # the answer then; None: no measured machine


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """The answer to one question about one model, with what would change it; costs in the book's currency."""

    question: Question
    choice: Choice | None  # None: no machine answers
    certain: Certainty  # that the choice keeps the limits; of an estimate, by its interval
    alike: Choice | None  # one that is not provably worse, and better in the other respect
    estimate: Choice | None  # an estimate that may be better than the measured choice
    nearest: Choice | None  # without a measured choice: the fastest measured machine
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class AnswerInputs:
    """Ranked rows, their options, guesses and terms: what answers are computed from."""

    rows: Sequence[RankedRow]  # in order of rank
    ranks: Sequence[Rank]
    pairs: Pairs
    guesses: Sequence[PricedGuess]
    terms: Terms

    def recommended(self, **limits: float) -> Recommendation:
        """Recommend for the user's wish; `limits` replace fields of the wish."""
        wish = replace(self.terms.wish, **limits)  # type: ignore[arg-type]  # no limit is the number of runs
        options = [(bool(row.marks), option) for row, option in self.pairs]
        return recommend(options, wish, self.terms.used_days)

    def rivals(self, option: Option | None, cost: Callable[[Option], float]) -> list[Option]:
        """Return the options that could be recommended instead: those without marks that cost no more.

        `cost` returns what the question minimises, money or days. Without an option, or if its figure has a
        mark, every option counts.
        """
        runs, used_days = self.terms.wish.runs, self.terms.used_days
        lasting = [pair for pair in self.pairs if pair[1].lives_for(runs, used_days)]
        if option is None or any(row.marks for row, other in lasting if other is option):
            return [other for _, other in lasting]
        sound = (other for row, other in lasting if not row.marks)
        return [other for other in sound if cost(other) <= cost(option)]

    def choice(self, option: Option | None) -> Choice | None:
        """Return an option as an answer shows it; None for no option."""
        if option is None:
            return None
        terms, days = self.terms, option.days
        row = next(row for row, other in self.pairs if other is option)
        return Choice(
            machine=option.label,
            measured=True,
            kind=option.kind,
            days=days.value,
            low_days=days.low,
            high_days=days.high,
            upfront=option.upfront,
            run_cost=option.run_cost(terms.prices.life_days, terms.utilisation),
            spend=option.spend(terms.wish.runs),
            doubts=_doubts(row),
        )

    def at_its_rent(self, row: RankedRow) -> Choice:
        """Return the row's machine at its rent, else at its price to buy, else without a cost."""
        options = (option for of, option in self.pairs if of is row)
        found = self.choice(max(options, key=lambda option: option.kind, default=None))
        return found or _without_price(row)


def answers_of(inputs: AnswerInputs) -> tuple[MachineAnswer, ...]:
    """Answer each question that was asked or, if none was, which machine is fastest and cheapest to rent."""
    wish = inputs.terms.wish
    if not inputs.rows:
        return ()
    if wish.deadline_days is None and wish.budget is None:
        return tuple(_unasked(inputs))
    found = []
    if wish.deadline_days is not None:
        found.append(_by_deadline(inputs, wish.deadline_days))
    if wish.budget is not None:
        found.append(_in_budget(inputs, wish.budget))
    return tuple(found)


def _by_deadline(inputs: AnswerInputs, deadline: float) -> MachineAnswer:
    given = inputs.recommended()
    option, choice = given.cheapest_by_deadline, inputs.choice(given.cheapest_by_deadline)
    if choice is None and not (inputs.pairs and inputs.terms.wish.budget is not None):
        choice = next(
            (
                _without_price(row)
                for row in inputs.rows
                if meets(on_another_machine(row.days), deadline) == "yes"
            ),
            None,
        )
    estimate, certain = _estimated(inputs, "by the deadline")
    changes = list(_deadline_changes(inputs, option, deadline)) if option or choice is None else []
    return _answer(
        inputs, "cheapest by the deadline", choice, given.as_cheap_but_faster, estimate, certain, changes
    )


def _in_budget(inputs: AnswerInputs, budget: float) -> MachineAnswer:
    given = inputs.recommended()
    choice = inputs.choice(given.fastest_in_budget)
    estimate, certain = _estimated(inputs, "in budget")
    changes = list(_budget_changes(inputs, given.fastest_in_budget, budget))
    answer = _answer(inputs, "fastest in budget", choice, given.as_fast_for_less, estimate, certain, changes)
    if given.fastest_in_budget is None:
        return answer
    spent = given.fastest_in_budget.spend_interval(inputs.terms.wish.runs)
    return replace(answer, certain=within(spent.low, spent.high, budget))


def _answer(
    inputs: AnswerInputs,
    question: Question,
    choice: Choice | None,
    alike: Option | None,
    estimate: Choice | None,
    certain: Certainty,
    changes: Sequence[Change],
) -> MachineAnswer:
    """Make the answer: the measured choice if there is one, else the estimate."""
    measured = choice is not None
    return MachineAnswer(
        question=question,
        choice=choice or estimate,
        certain="yes" if measured else certain,
        alike=inputs.choice(alike),
        estimate=estimate if measured else None,
        nearest=None if measured else inputs.at_its_rent(inputs.rows[0]),
        changes=tuple(changes),
    )


def _unasked(inputs: AnswerInputs) -> Iterator[MachineAnswer]:
    """Name the fastest machine, and the cheapest to rent if that is another one."""
    first = inputs.rows[0]
    rivals = [
        row
        for row, rank in zip(inputs.rows, inputs.ranks, strict=True)
        if rank.rank == 1 and row.machine.label != first.machine.label
    ]
    alike = inputs.at_its_rent(rivals[0]) if rivals else None
    sure: Certainty = "perhaps" if rivals else "yes"
    yield MachineAnswer("fastest", inputs.at_its_rent(first), sure, alike, None, None, ())
    rents = without_marks((bool(row.marks), o) for row, o in inputs.pairs if o.kind == "rent")
    if rents:
        cheapest = min(rents, key=lambda option: (option.a_run, option.days.value, option.label))
        yield MachineAnswer("cheapest to rent", inputs.choice(cheapest), "yes", None, None, None, ())


# What would change an answer


def _deadline_changes(inputs: AnswerInputs, option: Option | None, deadline: float) -> Iterator[Change]:
    """Yield the next deadline at which another machine answers, and the least at which this one answers."""
    runs, budget = inputs.terms.wish.runs, inputs.terms.wish.budget
    rivals = inputs.rivals(option, lambda rival: rival.spend(runs))
    rivals = [rival for rival in rivals if budget is None or rival.spend(runs) <= budget]
    for end in sorted({end for end in map(_end, rivals) if end > deadline}):
        other = inputs.recommended(deadline_days=end).cheapest_by_deadline
        if other is not option:
            yield Change("deadline", "from", end, inputs.choice(other))
            break
    if option is not None:
        before = math.nextafter(_end(option), -math.inf)
        other = inputs.recommended(deadline_days=before).cheapest_by_deadline
        yield Change("deadline", "under", _end(option), inputs.choice(other))


def _budget_changes(inputs: AnswerInputs, option: Option | None, budget: float) -> Iterator[Change]:
    """Yield the next budget at which another machine answers, and the least at which this one answers."""
    runs = inputs.terms.wish.runs
    rivals = inputs.rivals(option, lambda rival: rival.days.value)
    for spend in sorted({spend for spend in (rival.spend(runs) for rival in rivals) if spend > budget}):
        other = inputs.recommended(budget=spend).fastest_in_budget
        if other is not option:
            yield Change("budget", "from", spend, inputs.choice(other))
            break
    if option is not None:
        under = math.nextafter(option.spend(runs), -math.inf)
        other = inputs.recommended(budget=under).fastest_in_budget
        yield Change("budget", "under", option.spend(runs), inputs.choice(other))


def _end(option: Option) -> float:
    """Return the shortest deadline that the option surely meets."""
    return option.days.high


# Choices


def _estimated(inputs: AnswerInputs, question: str) -> tuple[Choice | None, Certainty]:
    """Find the guess that is marked as an answer to the question, and whether it keeps the limits.

    A guess without a price can still meet a deadline, if no budget was given and no other guess does.
    """
    for guess in inputs.guesses:
        for offer in guess.offers:
            if mark := next((mark for mark in offer.marks if question in mark), None):
                return _guessed(guess, offer), "perhaps" if mark.startswith("perhaps") else "yes"
    if inputs.terms.wish.budget is None:
        for certain in ("yes", "perhaps"):
            for guess in inputs.guesses:
                if guess.in_time == certain and guess.days is not None and not guess.offers:
                    return _guessed(guess, None), certain
    return None, "no"


def _guessed(guess: PricedGuess, offer: GuessOffer | None) -> Choice:
    assert guess.days is not None  # only guesses with days are chosen
    return Choice(
        machine=guess.label,
        measured=False,
        kind=offer.kind if offer else None,
        days=guess.days,
        low_days=guess.low_days,
        high_days=guess.high_days,
        upfront=offer.price if offer and offer.kind == "buy" else 0.0,
        run_cost=offer.run_cost if offer else None,
        spend=offer.spend if offer else None,
    )


def _without_price(row: RankedRow) -> Choice:
    days = on_another_machine(row.days)
    return Choice(
        machine=row.machine.label, measured=True, kind=None, days=days.value, low_days=days.low,
        high_days=days.high, upfront=0.0, run_cost=None, spend=None, doubts=_doubts(row),
    )  # fmt: skip


def _doubts(row: RankedRow) -> tuple[str, ...]:
    marks = tuple(mark.kind for mark in row.marks)
    return marks if row.complete else (*marks, "INCOMPLETE")

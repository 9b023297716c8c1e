"""Arrange a comparison as one matrix: models by kinds of machine, with days and dollars in each cell. Pure.

If there are several machines of a kind, the cell shows the one that answers, or else the one that ranks
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.decision import Certainty
from bench.report.compare.offers import Offer
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """A model on a kind of machine."""

    machine: str
    days: float
    low_days: float | None
    high_days: float | None
    run_cost: float | None  # None: it has no price
    bought: bool  # the cost is a share of the machine's price, and not its rent
    measured: bool
    in_time: Certainty | None  # None: no deadline was given
    in_budget: Certainty | None
    chosen: bool  # it is the answer to a question
    marks: tuple[str, ...]  # of a measured figure
    run_id: str | None  # None: nobody measured it

    @property
    def kept(self) -> Certainty:
        """Whether it keeps the deadline and the budget: the less sure of both."""
        both = self.in_time, self.in_budget
        return "no" if "no" in both else "perhaps" if "perhaps" in both else "yes"


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A group of a model, with a cell for each machine; None for one neither measured nor estimated."""

    part: ModelPart
    cells: tuple[MatrixCell | None, ...]

    @property
    def name(self) -> str:
        """The model, with the number of its group from the second group on."""
        return self.part.model if self.part.number == 1 else f"{self.part.model} (group {self.part.number})"


@dataclass(frozen=True, slots=True)
class Matrix:
    """All models by all machines."""

    machines: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def turned(self) -> bool:
        """Whether machines are the rows and models the columns: the longer side becomes the rows."""
        return len(self.rows) < len(self.machines)

    @property
    def cells(self) -> list[MatrixCell]:
        """All cells that hold a figure, row by row."""
        return [cell for row in self.rows for cell in row.cells if cell is not None]


def matrix_of(comparison: Comparison) -> Matrix:
    """Arrange all groups that have a machine with days, in the order of the comparison."""
    parts = [part for part in comparison.parts if part.entries or part.guesses]
    found = [{cell.machine: cell for cell in _cells(part)} for part in parts]
    sizes = {}
    for part in parts:
        for entry in part.entries:
            sizes[entry.row.machine.label] = entry.row.machine.name, entry.row.machine.devices
        for guess in part.guesses:
            sizes.setdefault(guess.label, (guess.gpu, guess.gpus))
    shown = {machine for cells in found for machine in cells}
    machines = tuple(sorted(shown, key=lambda machine: (*sizes[machine], machine)))
    rows = (
        MatrixRow(part, tuple(cells.get(machine) for machine in machines))
        for part, cells in zip(parts, found, strict=True)
    )
    return Matrix(machines, tuple(rows))


def _cells(part: ModelPart) -> Iterator[MatrixCell]:
    """Yield cells. Of several for a kind of machine, the last one counts: an answer, or else the fastest."""
    choices = [answer.choice for answer in part.answers if answer.choice is not None]
    guessed = {choice.machine for choice in choices if not choice.measured}
    measured = {(choice.machine, choice.days) for choice in choices if choice.measured}
    for guess in reversed(part.guesses):
        if guess.days is not None:
            yield _guessed(guess, guess.days, chosen=guess.label in guessed)
    slowest_first = [
        (entry, (entry.row.machine.label, entry.days.value) in measured) for entry in part.entries[::-1]
    ]
    for entry, chosen in sorted(slowest_first, key=lambda pair: pair[1]):
        yield _measured(entry, chosen=chosen)


def _measured(entry: Entry, *, chosen: bool) -> MatrixCell:
    offer = _best(entry.offers)
    return MatrixCell(
        machine=entry.row.machine.label,
        days=entry.days.value,
        low_days=entry.days.low,
        high_days=entry.days.high,
        run_cost=offer.run_cost if offer else None,
        bought=offer is not None and offer.kind == "buy",
        measured=True,
        in_time=entry.in_time,
        in_budget=_in_budget(offer),
        chosen=chosen,
        marks=tuple(mark.kind for mark in entry.row.marks),
        run_id=entry.row.run_id,
    )


def _guessed(guess: PricedGuess, days: float, *, chosen: bool) -> MatrixCell:
    offer = _best(guess.offers)
    return MatrixCell(
        machine=guess.label,
        days=days,
        low_days=guess.low_days,
        high_days=guess.high_days,
        run_cost=offer.run_cost if offer else None,
        bought=offer is not None and offer.kind == "buy",
        measured=False,
        in_time=guess.in_time,
        in_budget=_in_budget(offer),
        chosen=chosen,
        marks=(),
        run_id=None,
    )


def _best(offers: Sequence[Offer | GuessOffer]) -> Offer | GuessOffer | None:
    """Choose the offer that answers a question, else one within the budget, and of those the rent."""

    def order(offer: Offer | GuessOffer) -> tuple[bool, bool, bool]:
        return not offer.marks, _in_budget(offer) == "no", offer.kind != "rent"

    return min(offers, key=order, default=None)


def _in_budget(offer: Offer | GuessOffer | None) -> Certainty | None:
    match offer.in_budget if offer else None:
        case True:
            return "yes"
        case False:
            return "no"
        case verdict:
            return verdict

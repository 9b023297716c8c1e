"""Compare rows at their prices: rank them, set some apart with a reason, say what to buy or rent. Pure.

Out: a `Comparison`, which has everything that the outputs show; table, HTML, CSV and JSON only format it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.base.strict_json import INTERNAL
from bench.records.estimate import Interval
from bench.records.spread import on_another_day
from bench.report.compare.answers import AnswerInputs, MachineAnswer, answers_of
from bench.report.compare.appraisal import Appraisal, PricedMachine, appraise
from bench.report.compare.compared_rows import Conditions, RankedRow, Row, recipe_of
from bench.report.compare.decision import Certainty, Rank, Wish
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.extrapolate import Guess, MeasuredRow, extrapolate
from bench.report.compare.fastest_runs import assurance_of, fastest_runs
from bench.report.compare.groups import (
    Group,
    decisive,
    differing,
    groups_of,
    in_order,
    ranked_rows,
    why_no_figure,
)
from bench.report.compare.offers import Offer, Terms, priced_row
from bench.report.compare.owning import DAYS_A_YEAR
from bench.report.compare.predicted_estimate import predicted_estimate
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess, price_guesses


@dataclass(frozen=True, slots=True)
class Entry:
    """A ranked row, with its rank and its prices."""

    row: RankedRow
    days: Interval  # of a run on another machine of this kind, by which it is ranked
    on_another_day: Interval  # the days of a run on this very machine
    place: Rank
    kwh: float | None  # of the GPUs alone
    node_kwh: float | None
    co2_kg: float | None
    offers: tuple[Offer, ...]
    gaps: tuple[str, ...]  # why prices are missing
    in_time: Certainty | None  # None: no deadline was given
    differs_in: tuple[str, ...]  # with --rank-all: conditions that differ from the first group's
    machine: PricedMachine = field(metadata=INTERNAL)  # what ranks, offers and `in_time` follow from


@dataclass(frozen=True, slots=True)
class SetApart:
    """A row that is not ranked, and why."""

    row: Row
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The comparison of one model under equal conditions: its rows, ranked or set apart.

    A model has a part for each group of rows that cannot be ranked together; the first has most machines.
    """

    model: str
    unit: str
    conditions: Conditions  # that the ranked rows have in common
    entries: tuple[Entry, ...]  # the fastest first
    apart: tuple[SetApart, ...]
    nothing_in_budget: bool = False  # of the measured machines
    nothing_in_time: bool = False
    guesses: tuple[PricedGuess, ...] = ()  # for machines that were not measured: never ranked
    answers: tuple[MachineAnswer, ...] = ()  # to the user's questions
    number: int = 1  # among the parts of this model
    differs_in: tuple[str, ...] = ()  # conditions that are not those of the model's first part, in words

    @property
    def name(self) -> str:
        """A name that no other part has, for links and files."""
        return self.model if self.number == 1 else f"{self.model}-group-{self.number}"

    @property
    def recipe(self) -> Conditions:
        """The conditions about the training itself; groups that differ in software alone have equal ones."""
        return recipe_of(self.conditions)

    @property
    def title(self) -> str:
        """The heading of this part: the model and, beyond its first part, how conditions differ."""
        return f"{self.model}: {', '.join(self.differs_in)}" if self.differs_in else self.model

    def not_replaced_by(self, row: Row) -> Row | None:
        """Return a ranked row of the same machine that is trusted more than this one, if there is any."""
        same = (e.row for e in self.entries if e.row.machine.identity == row.machine.identity)
        return next((other for other in same if assurance_of(other) > assurance_of(row)), None)

    @property
    def every_offer(self) -> Iterator[Offer | GuessOffer]:
        """Yield the offers of measured machines, then those of guessed ones."""
        for entry in self.entries:
            yield from entry.offers
        for guess in self.guesses:
            yield from guess.offers

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, those that are ranked first."""
        return (*(entry.row for entry in self.entries), *(apart.row for apart in self.apart))


@dataclass(frozen=True, slots=True)
class Refused:
    """A bundle that did not verify."""

    path: str
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer of `bench compare`, as every output format shows it."""

    currency: str
    life_years: float
    utilisation: float
    wish: Wish
    bundles: int
    parts: tuple[ModelPart, ...]
    refused: tuple[Refused, ...]
    quotes: tuple[str, ...]  # every quote that a figure rests on
    own_prices: bool  # prices come from a file of the user
    energy: EnergyFactors
    schema: Literal["bench/comparison/v1"] = "bench/comparison/v1"

    @property
    def life_days(self) -> float:
        """The days that an owned machine lasts, used or not."""
        return self.life_years * DAYS_A_YEAR


def compare_rows(rows: Iterable[Row], refused: Sequence[Refused], terms: Terms, bundles: int) -> Comparison:
    """Compare rows; their order does not change the comparison."""
    by_model = _by_model(rows)
    evidence = _evidence(by_model.values()) if terms.wanted else []
    unusable = _unusable(row for rows_of_model in by_model.values() for row in rows_of_model)
    parts = tuple(
        part
        for model, of_model in by_model.items()
        for part in _parts(model, of_model, terms, evidence, unusable)
    )
    quotes = {q: None for part in parts for offer in part.every_offer for q in offer.quotes}
    book = terms.prices
    return Comparison(
        currency=book.currency,
        life_years=book.life_years,
        utilisation=terms.utilisation,
        wish=terms.wish,
        bundles=bundles,
        parts=parts,
        refused=tuple(sorted(refused, key=lambda refusal: (refusal.path, refusal.reason))),
        quotes=tuple(quotes),
        own_prices=terms.own_prices,
        energy=terms.energy,
    )


def _by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Collect the rows of each model. Models are ordered by family, then by the size of training."""
    found: dict[str, list[Row]] = {}
    for row in in_order(rows):
        found.setdefault(row.model, []).append(row)

    def size(model: str) -> tuple[str, float, str]:
        counted = [row.training_flops for row in found[model] if row.training_flops]
        return min(row.family for row in found[model]), min(counted, default=math.inf), model

    return {model: found[model] for model in sorted(found, key=size)}


def _evidence(models: Iterable[list[Row]]) -> list[MeasuredRow]:
    """Select each recipe's fastest row on each machine, from complete runs without marks."""
    best: dict[tuple[str, Conditions, str], MeasuredRow] = {}
    for rows in models:
        healthy = [row for row in decisive(ranked_rows(rows)) if row.complete and not row.marks]
        for row in sorted(healthy, key=lambda row: row.days.value):
            gpu = _gpu_of(row)
            if gpu is None or row.training_flops is None:
                continue
            measured = MeasuredRow(
                model=row.model,
                family=row.family,
                gpu=gpu,
                gpus=row.machine.devices,
                precision=row.precision,
                tf32="tf32" in row.best.setting,
                flops=row.training_flops,
                days=row.days.value,
                peak_bytes=row.best.peak_bytes,
            )
            best.setdefault((row.model, row.recipe, row.machine.label), measured)
    return list(best.values())


def _gpu_of(row: Row) -> GpuModel | None:
    return gpu_named(row.machine.name) if row.machine.kind == "cuda" else None


def _unusable(rows: Iterable[Row]) -> Mapping[str, str]:
    """Return, by family, why no estimate can be based on its measured rows."""
    of_family: dict[str, list[Row]] = {}
    for row in ranked_rows(rows):
        of_family.setdefault(row.family, []).append(row)
    reasons = {}
    for family, measured in of_family.items():
        names = ", ".join(dict.fromkeys(row.machine.name for row in measured))
        if not any(map(_gpu_of, measured)):
            reasons[family] = f"{names}: no vendor's peak is known to estimate from"
        elif all(row.slowed for row in measured):
            reasons[family] = f"in every run of {family} a GPU was slowed down"
        elif all(row.marks for row in measured):
            kinds = sorted({mark.kind for row in measured for mark in row.marks})
            reasons[family] = f"every run of {family} is marked: {', '.join(kinds)}"
        else:
            reasons[family] = f"no run of {family} is complete: bench run --resume continues one"
    return reasons


def _guesses(
    recipe: Conditions,
    rows: Sequence[Row],
    terms: Terms,
    evidence: list[MeasuredRow],
    unusable: Mapping[str, str],
) -> tuple[Guess, ...]:
    """Estimate a recipe on the machines that the user asked for, from all rows of the model.

    The operations are those of the row with the fewest: settings that recompute have more than are needed.
    """
    usable = decisive(ranked_rows(rows))
    counted = [(row.training_flops, row) for row in usable if row.training_flops and row.recipe == recipe]
    if not counted:
        return ()
    flops, row = min(counted, key=lambda pair: pair[0])
    of_row = row.family, row.precision, flops, evidence
    ranked = [row for row in usable if row.recipe == recipe and row.complete and not row.marks]
    guesses = []
    for gpu, gpus in terms.wanted:
        by_share_of_peak = extrapolate(gpu, gpus, *of_row)
        guess = predicted_estimate(gpu, gpus, by_share_of_peak.at_peak_days, ranked) or by_share_of_peak
        if not guess.days:
            guess = replace(guess, basis=unusable.get(row.family, guess.basis))
        guesses.append(guess)
    return tuple(guesses)


def _parts(
    model: str, rows: list[Row], terms: Terms, evidence: list[MeasuredRow], unusable: Mapping[str, str]
) -> Iterator[ModelPart]:
    """Yield a part for each group of a model's rows; each recipe is estimated once, in its first part."""
    estimated: set[Conditions] = set()
    for number, group in enumerate(groups_of(rows, as_one=terms.rank_all), 1):
        recipe = group.rows[0].recipe if group.rows else ()
        guesses = () if recipe in estimated else _guesses(recipe, rows, terms, evidence, unusable)
        estimated.add(recipe)
        yield _part(model, number, group, terms, guesses)


def _part(model: str, number: int, group: Group, terms: Terms, guesses: tuple[Guess, ...]) -> ModelPart:
    chosen, left_out = fastest_runs(group.rows)
    apart = [SetApart(row, (why_no_figure(row),)) for row in group.without_figure]
    apart += [SetApart(row, (why,)) for row, why in left_out]
    entries, found = _entries(chosen, group.conditions, terms)
    pairs = [(one.row, option) for one in entries for option in one.machine.options(terms.utilisation)]
    priced_guesses = price_guesses(guesses, terms, found.answer, {row.machine.label for row in chosen})
    ranked, ranks = [entry.row for entry in entries], [entry.place for entry in entries]
    return ModelPart(
        model,
        (*group.rows, *group.without_figure)[0].unit,
        group.conditions,
        entries,
        tuple(apart),
        nothing_in_budget=found.nothing_in_budget,
        nothing_in_time=found.nothing_in_time,
        guesses=priced_guesses,
        answers=answers_of(AnswerInputs(ranked, ranks, pairs, priced_guesses, terms)),
        number=number,
        differs_in=group.differs_in,
    )


def _entries(rows: list[RankedRow], base: Conditions, terms: Terms) -> tuple[tuple[Entry, ...], Appraisal]:
    priced = [priced_row(row, terms.prices) for row in rows]
    found = appraise([item.machine for item in priced], terms.wish, terms.prices.life_days, terms.utilisation)
    entries = tuple(
        Entry(
            row=item.row,
            days=item.machine.days,
            on_another_day=on_another_day(item.row.days),
            place=appraised.place,
            kwh=item.row.kwh,
            node_kwh=terms.energy.node_kwh(item.row.kwh),
            co2_kg=terms.energy.co2_kg(item.row.kwh),
            offers=item.offers(appraised),
            gaps=item.gaps,
            in_time=appraised.in_time,
            differs_in=differing(item.row.conditions, base),
            machine=item.machine,
        )
        for item, appraised in zip((priced[i] for i in found.order), found.machines, strict=True)
    )
    return entries, found

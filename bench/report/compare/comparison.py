"""Rows and prices to a comparison: what is ranked, what stands apart and why, what to buy. Pure.

Everything that any output shows is in the Comparison, once: table, HTML, CSV and JSON only spell it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.report.compare.compared_rows import DEEPSPEED, Row
from bench.report.compare.decision import Rank, Recommendation, Wish, meets, places
from bench.report.compare.extrapolate import Extrapolation, MeasuredRow, extrapolate
from bench.report.compare.offers import Offer, Terms, days_of, offers_of

Conditions = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    row: Row
    place: Rank
    kwh: float | None
    offers: tuple[Offer, ...]
    gaps: tuple[str, ...]  # prices that are not there
    in_time: Literal["yes", "perhaps", "no"] | None  # None: no deadline was named
    differs_in: tuple[str, ...]  # with --rank-all: why it should not be here


@dataclass(frozen=True, slots=True)
class SetApart:
    """A row that is not ranked, and why."""

    row: Row
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelPart:
    model: str
    unit: str
    conditions: Conditions
    entries: tuple[Entry, ...]  # the fastest first
    apart: tuple[SetApart, ...]
    nothing_in_budget: bool = False
    nothing_in_time: bool = False
    guesses: tuple[Extrapolation, ...] = ()  # of machines that were not measured: never ranked


@dataclass(frozen=True, slots=True)
class Refused:
    path: str
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Comparison:
    currency: str
    life_years: float
    utilisation: float
    wish: Wish
    bundles: int
    parts: tuple[ModelPart, ...]
    refused: tuple[Refused, ...]
    quotes: tuple[str, ...]  # every quote that a figure rests on
    own_prices: bool = False  # the user has a file of them
    schema: Literal["bench/comparison/v1"] = field(default="bench/comparison/v1", kw_only=True)


def compare_rows(rows: Iterable[Row], refused: Sequence[Refused], terms: Terms, bundles: int) -> Comparison:
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    evidence = _evidence(by_model.values()) if terms.wanted else []
    unusable = _unusable(row for found in by_model.values() for row in found)
    parts = tuple(_part(model, found, terms, evidence, unusable) for model, found in by_model.items())
    quotes = {q: None for part in parts for e in part.entries for offer in e.offers for q in offer.quotes}
    book = terms.prices
    return Comparison(
        book.currency, book.life_years, terms.utilisation, terms.wish, bundles, parts, tuple(refused),
        tuple(quotes), terms.own_prices,
    )  # fmt: skip


def _evidence(models: Iterable[list[Row]]) -> list[MeasuredRow]:
    """One row a model and kind of machine: its fastest, from runs that came to their end in good health.

    What the ranked rows train goes first: days of something else by that name do not tell which is faster.
    """
    best: dict[tuple[str, str], MeasuredRow] = {}
    for rows in models:
        recipe = _ranked_recipe(rows)
        measured = [row for row in rows if row.best is not None and row.complete and not row.slowed]
        for row in sorted(measured, key=lambda row: (row.recipe != recipe, days_of(row).value, row.path)):
            gpu = _gpu_of(row)
            if gpu is None or row.best is None or row.training_flops is None:
                continue
            found = MeasuredRow(
                row.model, row.family, gpu, row.machine.devices, row.precision, "tf32" in row.best.setting,
                row.training_flops, days_of(row).value, row.best.peak_bytes,
            )  # fmt: skip
            best.setdefault((row.model, row.machine.label), found)
    return list(best.values())


def _gpu_of(row: Row) -> GpuModel | None:
    return gpu_named(row.machine.name) if row.machine.kind == "cuda" else None


def _ranked_recipe(rows: list[Row]) -> Conditions:
    """What those rows of a name train that most of them are alike with."""
    measured = [row for row in _without_idle(rows) if row.best is not None]
    base = _base([row.conditions for row in measured])
    return next((row.recipe for row in measured if row.conditions == base), ())


def _unusable(rows: Iterable[Row]) -> Mapping[str, str]:
    """By family, why what was measured of it is no evidence: it stands right above such an estimate."""
    of_family: dict[str, list[Row]] = {}
    for row in rows:
        if row.best is not None:
            of_family.setdefault(row.family, []).append(row)
    found = {}
    for family, measured in of_family.items():
        names = ", ".join(dict.fromkeys(row.machine.name for row in measured))
        if not any(map(_gpu_of, measured)):
            found[family] = f"{names}: no vendor's peak is known to go by"
        elif all(row.slowed for row in measured):
            found[family] = f"in every run of {family} a GPU was slowed down"
        else:
            found[family] = f"no run of {family} came to its end: bench run --resume goes on with one"
    return found


def _guesses(
    rows: list[Row], terms: Terms, evidence: list[MeasuredRow], unusable: Mapping[str, str]
) -> tuple[Extrapolation, ...]:
    """Of what is ranked, whatever stands beside it, and of the least arithmetic that a setting of it does."""
    recipe = _ranked_recipe(rows)
    counted = [(row.training_flops, row) for row in rows if row.training_flops and row.recipe == recipe]
    if not counted:
        return ()
    flops, row = min(counted, key=lambda pair: pair[0])
    made = (extrapolate(gpu, gpus, row.family, row.precision, flops, evidence) for gpu, gpus in terms.wanted)
    return tuple(one if one.days else replace(one, basis=unusable[row.family]) for one in made)


def _part(
    model: str, rows: list[Row], terms: Terms, evidence: list[MeasuredRow], unusable: Mapping[str, str]
) -> ModelPart:
    apart: list[SetApart] = []
    measured = []
    for row in _without_idle(rows):
        if row.best is None:
            apart.append(SetApart(row, (_nothing(row),)))
        else:
            measured.append(row)
    base = _base([row.conditions for row in measured])
    alike = []
    for row in measured:
        differences = differing(row.conditions, base)
        if differences and not terms.rank_all:
            apart.append(SetApart(row, differences))
        else:
            alike.append(row)
    newest, repeated = _newest(alike)
    apart += repeated
    entries, answer = _entries(newest, base, terms)
    wish, priced = terms.wish, any(entry.offers for entry in entries)
    in_time = any(entry.in_time == "yes" for entry in entries)
    return ModelPart(
        model, rows[0].unit, base, entries, tuple(apart),
        nothing_in_budget=wish.budget is not None and priced and answer.fastest_in_budget is None,
        nothing_in_time=(
            wish.deadline_days is not None
            and bool(entries)
            and not (in_time if wish.budget is None or not priced else answer.cheapest_by_deadline)
        ),
        guesses=_guesses(rows, terms, evidence, unusable),
    )  # fmt: skip


def _without_idle(rows: list[Row]) -> list[Row]:
    """A search may have come to DeepSpeed in one run and not in another: it was there in both."""
    if any(row.tried_zero for row in rows):
        return rows
    return [
        replace(row, conditions=tuple(pair for pair in row.conditions if pair[0] != DEEPSPEED))
        for row in rows
    ]


def _nothing(row: Row) -> str:
    outcomes = Counter(attempt.outcome for attempt in row.attempts)
    if not outcomes:
        return "nothing of it was tried"
    return "no figure: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def _base(conditions: Sequence[Conditions]) -> Conditions:
    """What most rows have in common; of equally many, the first ones."""
    counted = Counter(conditions)
    return max(counted, key=lambda c: counted[c], default=())


def differing(conditions: Conditions, base: Conditions) -> tuple[str, ...]:
    """In words: "batch 512, not 1024"."""
    if conditions == base:
        return ()
    ours, theirs = dict(conditions), dict(base)
    names = dict.fromkeys([*ours, *theirs])
    return tuple(
        _difference(name, ours.get(name, "none"), theirs.get(name, "none"))
        for name in names
        if ours.get(name) != theirs.get(name)
    )


def _difference(name: str, ours: str, theirs: str) -> str:
    if name in ("architecture", "rest of the recipe"):
        return f"another {name}" if name == "architecture" else "another recipe"
    return f"{name} {ours}, not {theirs}"


# No two runs take the same times to the last digit.
COPIED = "another run with the same samples, so that one of the two measured nothing:"


def _newest(rows: list[Row]) -> tuple[list[Row], list[SetApart]]:
    """One row a machine: its newest run, of those that came to their end where one did.

    The others are named, and so are a bundle that is there twice and samples that are.
    """
    latest: dict[str, Row] = {}
    first = {row.samples_sha256: row for row in reversed(rows)}
    copied = [r for r in rows if r.samples_sha256 and r.run_id != first[r.samples_sha256].run_id]
    alone = set(map(id, rows)) - set(map(id, copied))
    rows = [row for row in rows if id(row) in alone]
    for row in rows:
        before = latest.get(row.machine.identity)
        if before is None or _age(row) > _age(before):
            latest[row.machine.identity] = row
    kept = {id(row) for row in latest.values()}
    repeated = [SetApart(row, (f"{COPIED} {first[row.samples_sha256].path}",)) for row in copied]
    for row in rows:
        if id(row) not in kept:
            newer = latest[row.machine.identity]
            repeated.append(SetApart(row, (_why_another(row, newer),)))
    return list(latest.values()), repeated


def _age(row: Row) -> tuple[bool, str, str]:
    return row.complete, row.started_at, row.run_id


def _why_another(row: Row, kept: Row) -> str:
    if kept.run_id == row.run_id:
        return f"the same run as {kept.path}"
    if kept.complete and not row.complete:
        return f"incomplete, and the same machine has a complete run: {kept.path}"
    return f"the same machine ran again: {kept.path}"


def _entries(rows: list[Row], base: Conditions, terms: Terms) -> tuple[tuple[Entry, ...], Recommendation]:
    ordered = sorted(rows, key=lambda row: (days_of(row).value, row.machine.label, row.path))
    offered, answer = offers_of(ordered, terms)
    deadline = terms.wish.deadline_days
    entries = tuple(
        Entry(
            row, place, row.kwh, offers, gaps,
            None if deadline is None else meets(days_of(row), deadline),
            differing(row.conditions, base),
        )
        for row, (offers, gaps), place in zip(
            ordered, offered, places([days_of(row) for row in ordered]), strict=True
        )
    )  # fmt: skip
    return entries, answer

"""Compare rows at their prices: what is ranked, what is set apart and why, what to buy or rent.

The `Comparison` holds all that the outputs show; table, HTML, CSV and JSON only format it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.bundle.verdict import Assurance, assurance
from bench.records.copied import originals
from bench.report.compare.compared_rows import DEEPSPEED, RankedRow, Row
from bench.report.compare.decision import Rank, Recommendation, Wish, meets, places
from bench.report.compare.extrapolate import Extrapolation, MeasuredRow, extrapolate
from bench.report.compare.offers import Offer, Terms, offers_of
from bench.report.compare.predicted_estimate import predicted_estimate

Conditions = tuple[tuple[str, str], ...]
AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True, slots=True)
class Entry:
    """A ranked row, with its rank and its prices."""

    row: RankedRow
    place: Rank
    kwh: float | None
    offers: tuple[Offer, ...]
    gaps: tuple[str, ...]  # why prices are missing
    in_time: Literal["yes", "perhaps", "no"] | None  # None: no deadline was given
    differs_in: tuple[str, ...]  # with --rank-all: conditions that differ from most rows'


@dataclass(frozen=True, slots=True)
class SetApart:
    """A row that is not ranked, and why."""

    row: Row
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The comparison of one model: all its rows, ranked or set apart."""

    model: str
    unit: str
    conditions: Conditions  # that the ranked rows have in common
    entries: tuple[Entry, ...]  # the fastest first
    apart: tuple[SetApart, ...]
    nothing_in_budget: bool = False
    nothing_in_time: bool = False
    guesses: tuple[Extrapolation, ...] = ()  # for machines that were not measured: never ranked

    def not_replaced_by(self, row: Row) -> Row | None:
        """Return a ranked row of the same machine which this newer one does not replace: it is worth more."""
        same = (e.row for e in self.entries if e.row.machine.identity == row.machine.identity)
        return next((other for other in same if assurance_of(other) > assurance_of(row)), None)

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
    own_prices: bool = False  # prices come from a file of the user
    schema: Literal["bench/comparison/v1"] = field(default="bench/comparison/v1", kw_only=True)


def assurance_of(row: Row) -> Assurance:
    return assurance(row.level, row.trusted)


def decisive(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """Select the rows that decide for all: those that the user trusts, or all if none is trusted."""
    every = list(rows)
    return [row for row in every if row.trusted] or every


def compare_rows(rows: Iterable[Row], refused: Sequence[Refused], terms: Terms, bundles: int) -> Comparison:
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    evidence = _evidence(by_model.values()) if terms.wanted else []
    unusable = _unusable(row for rows_of_model in by_model.values() for row in rows_of_model)
    parts = tuple(_part(model, of_model, terms, evidence, unusable) for model, of_model in by_model.items())
    quotes = {q: None for part in parts for e in part.entries for offer in e.offers for q in offer.quotes}
    book = terms.prices
    return Comparison(
        currency=book.currency,
        life_years=book.life_years,
        utilisation=terms.utilisation,
        wish=terms.wish,
        bundles=bundles,
        parts=parts,
        refused=tuple(refused),
        quotes=tuple(quotes),
        own_prices=terms.own_prices,
    )


def _evidence(models: Iterable[list[Row]]) -> list[MeasuredRow]:
    """Select the fastest row of each model and machine, from complete runs in which no GPU was slowed down.

    Rows with the ranked recipe go first: another recipe under the same name takes other days.
    """
    best: dict[tuple[str, str], MeasuredRow] = {}
    for rows in models:
        recipe = _ranked_recipe(rows)
        healthy = [row for row in decisive(_ranked(rows)) if row.complete and not row.slowed]
        for row in sorted(healthy, key=lambda row: (row.recipe != recipe, row.days.value, row.path)):
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
            best.setdefault((row.model, row.machine.label), measured)
    return list(best.values())


def _ranked(rows: Iterable[Row]) -> list[RankedRow]:
    return [row for row in rows if isinstance(row, RankedRow)]


def _gpu_of(row: Row) -> GpuModel | None:
    return gpu_named(row.machine.name) if row.machine.kind == "cuda" else None


def _ranked_recipe(rows: list[Row]) -> Conditions:
    """Return what the ranked rows train: the recipe under the conditions that most rows share."""
    measured = _ranked(_without_unused_deepspeed(rows))
    base = _base([row.conditions for row in decisive(measured)])
    return next((row.recipe for row in measured if row.conditions == base), ())


def _unusable(rows: Iterable[Row]) -> Mapping[str, str]:
    """Say by family why its measured rows cannot support an estimate; shown if there is no estimate."""
    of_family: dict[str, list[Row]] = {}
    for row in _ranked(rows):
        of_family.setdefault(row.family, []).append(row)
    reasons = {}
    for family, measured in of_family.items():
        names = ", ".join(dict.fromkeys(row.machine.name for row in measured))
        if not any(map(_gpu_of, measured)):
            reasons[family] = f"{names}: no vendor's peak is known to estimate from"
        elif all(row.slowed for row in measured):
            reasons[family] = f"in every run of {family} a GPU was slowed down"
        else:
            reasons[family] = f"no run of {family} is complete: bench run --resume continues one"
    return reasons


def _guesses(
    rows: list[Row], terms: Terms, evidence: list[MeasuredRow], unusable: Mapping[str, str]
) -> tuple[Extrapolation, ...]:
    """Estimate the ranked recipe on the machines that the user asked for.

    The arithmetic is the least of any row: some settings recompute, which another machine need not do.
    """
    recipe, usable = _ranked_recipe(rows), decisive(_ranked(rows))
    counted = [(row.training_flops, row) for row in usable if row.training_flops and row.recipe == recipe]
    if not counted:
        return ()
    flops, row = min(counted, key=lambda pair: pair[0])
    of_row = row.family, row.precision, flops, evidence
    ranked = [one for one in usable if one.recipe == recipe and one.complete and not one.slowed]
    guesses = (_guess(extrapolate(gpu, gpus, *of_row), (gpu, gpus), ranked) for gpu, gpus in terms.wanted)
    return tuple(
        guess if guess.days else replace(guess, basis=unusable.get(row.family, guess.basis))
        for guess in guesses
    )


def _guess(rule: Extrapolation, machine: tuple[GpuModel, int], rows: list[RankedRow]) -> Extrapolation:
    """Return the predictor's estimate where it has one, else that of the share of the peak."""
    return predicted_estimate(*machine, rule.at_peak_days, rows) or rule


def _part(
    model: str, rows: list[Row], terms: Terms, evidence: list[MeasuredRow], unusable: Mapping[str, str]
) -> ModelPart:
    alike = _without_unused_deepspeed(rows)
    measured = _ranked(alike)
    apart = [SetApart(row, (_why_no_figure(row),)) for row in alike if not isinstance(row, RankedRow)]
    base = _base([row.conditions for row in decisive(measured)])
    comparable = []
    for ranked in measured:
        differences = differing(ranked.conditions, base)
        if differences and not terms.rank_all:
            apart.append(SetApart(ranked, differences))
        else:
            comparable.append(ranked)
    newest, repeated = _newest(comparable)
    apart += repeated
    entries, answer = _entries(newest, base, terms)
    wish, priced = terms.wish, any(entry.offers for entry in entries)
    in_time = any(entry.in_time == "yes" for entry in entries)
    return ModelPart(
        model,
        rows[0].unit,
        base,
        entries,
        tuple(apart),
        nothing_in_budget=wish.budget is not None and priced and answer.fastest_in_budget is None,
        nothing_in_time=(
            wish.deadline_days is not None
            and bool(entries)
            and not (in_time if wish.budget is None or not priced else answer.cheapest_by_deadline)
        ),
        guesses=_guesses(rows, terms, evidence, unusable),
    )


def _without_unused_deepspeed(rows: list[Row]) -> list[Row]:
    """Drop the condition of DeepSpeed's version, unless one of the rows tried a setting that uses DeepSpeed.

    Rows that could have used DeepSpeed, but whose search did not try it, stay comparable.
    """
    if any(row.tried_zero for row in rows):
        return rows
    kept = [tuple(pair for pair in row.conditions if pair[0] != DEEPSPEED) for row in rows]
    return [replace(row, conditions=pairs) for row, pairs in zip(rows, kept, strict=True)]


def _why_no_figure(row: Row) -> str:
    outcomes = Counter(attempt.outcome for attempt in row.attempts)
    if not outcomes:
        return "no setting was tried"
    return "no figure: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def _base(conditions: Sequence[Conditions]) -> Conditions:
    """Return the conditions that most rows share; if there is a tie, the first."""
    counted = Counter(conditions)
    return max(counted, key=lambda c: counted[c], default=())


def differing(conditions: Conditions, base: Conditions) -> tuple[str, ...]:
    """Put the differences in words, such as "batch 512, not 1024"."""
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


COPIED = "its samples are those of another run, so one of the two measured nothing:"


def _newest(rows: list[RankedRow]) -> tuple[list[RankedRow], list[SetApart]]:
    """Keep one row for each machine: its newest complete run, or its newest run if no run is complete.

    A newer run replaces only a run of the same or a lower assurance: its times and GPUs are its own words.
    All other rows are set apart: older runs, a second copy of a bundle, and a run with copied samples.
    """
    copied = _copied(rows)
    rows = [row for row in rows if id(row) not in copied]
    repeated = list(copied.values())
    by_machine: dict[str, list[RankedRow]] = {}
    for row in rows:
        by_machine.setdefault(row.machine.identity, []).append(row)
    kept = []
    for of_machine in by_machine.values():
        staying: list[RankedRow] = []
        for row in sorted(of_machine, key=_preference, reverse=True):
            newer = next((one for one in staying if assurance_of(one) >= assurance_of(row)), None)
            if newer is None:
                staying.append(row)
            else:
                repeated.append(SetApart(row, (_why_another(row, newer),)))
        kept += staying
    return kept, repeated


def _copied(rows: list[RankedRow]) -> Mapping[int, SetApart]:
    """Set apart, by id(), every row with the step times of another one.

    The original is the row with the highest assurance, then the one received first, then the one named first.
    Of a run that was continued, or given twice, `_newest` chooses, unless one of its bundles is trusted less.
    """
    ordered = sorted(rows, key=lambda row: row.received_at or "9")
    ordered.sort(key=assurance_of, reverse=True)
    runs = [((row.run_id, row.machine.identity, assurance_of(row)), row.step_times) for row in ordered]
    found: dict[int, SetApart] = {}
    for row, position in zip(ordered, originals(runs), strict=True):
        original = ordered[position]
        if row is not original:
            why = _why_another(row, original) if _is_one_run(row, original) else f"{COPIED} {original.path}"
            found[id(row)] = SetApart(row, (why,))
    return found


def _is_one_run(a: Row, b: Row) -> bool:
    """Whether two rows are of one run: the same bundle twice, or a run that was continued."""
    return (a.run_id, a.machine.identity) == (b.run_id, b.machine.identity)


def _preference(row: Row) -> tuple[bool, str, str, Assurance]:
    return row.complete, row.started_at, row.run_id, assurance_of(row)


def _why_another(row: Row, kept: Row) -> str:
    if kept.run_id == row.run_id:
        return f"the same run as {kept.path}"
    if kept.complete and not row.complete:
        return f"incomplete, and the same machine has a complete run: {kept.path}"
    return f"the same machine ran again: {kept.path}"


def _entries(
    rows: list[RankedRow], base: Conditions, terms: Terms
) -> tuple[tuple[Entry, ...], Recommendation]:
    ordered = sorted(rows, key=lambda row: (row.days.value, row.machine.label, row.path))
    offered, answer = offers_of(ordered, terms)
    ranks = places([row.days for row in ordered])
    deadline = terms.wish.deadline_days
    entries = tuple(
        Entry(
            row=row,
            place=rank,
            kwh=row.kwh,
            offers=offers,
            gaps=gaps,
            in_time=None if deadline is None else meets(row.days, deadline),
            differs_in=differing(row.conditions, base),
        )
        for row, (offers, gaps), rank in zip(ordered, offered, ranks, strict=True)
    )
    return entries, answer

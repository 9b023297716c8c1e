"""Format machines and their offers as rows of texts: one spelling for table, Markdown and page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.base.sizes import bytes_text
from bench.base.terminal import Column
from bench.bundle.verdict import level_text
from bench.records.text import (
    batch_text,
    count_text,
    currency_sign,
    figures,
    interval_text,
    money_text,
    share_text,
    short_count,
)
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.offers import Offer
from bench.report.text.guess_text import guess_cells, guess_offer_row, paid_for, price_text

HEADERS: Mapping[str, str] = {
    "rank": "",
    "machine": "machine",
    "days": "days",
    "slower": "times the fastest",
    "setting": "setting",
    "batch": "batch",
    "limit": "of limit",
    "floor": "of floor",
    "mfu": "MFU",
    "memory": "memory",
    "kwh": "kWh a run",
    "node_kwh": "node kWh",
    "co2": "kg CO2",
    "level": "level",
    "run": "run",
    "note": "",
}
TEXT_COLUMNS = frozenset({"machine", "setting", "level", "run", "note"})
FIXED_COLUMNS = frozenset({"rank", "machine", "note"})  # always shown
IN_TIME = {"yes": "meets the deadline", "perhaps": "may miss the deadline", "no": "misses the deadline"}
COLUMN_NAMES = tuple(name for name in HEADERS if name not in FIXED_COLUMNS)
OFFER_COLUMNS = (
    Column("kind", "", fixed=True),
    Column("machine", "machine", fixed=True),
    Column("days", "days", right=True),
    Column("price", "price", right=True),
    Column("cost", "a run", right=True),
    Column("worth", "worth", right=True),
    Column("billion", "a billion", right=True),
    Column("note", "", fixed=True),
)


def named_entries(part: ModelPart) -> list[tuple[Entry, str]]:
    """Return each entry with the name of its machine; among several of one kind, with its bundle's name."""
    kinds = Counter(entry.row.machine.label for entry in part.entries)
    found = []
    for entry in part.entries:
        label = entry.row.machine.label
        found.append((entry, label if kinds[label] == 1 else f"{label} ({Path(entry.row.path).stem})"))
    return found


def cells(entry: Entry, machine: str) -> dict[str, str]:
    """Format the figures of an entry, by column; a figure that is not known has an empty text."""
    row, best = entry.row, entry.row.best
    return {
        "rank": str(entry.place.rank),
        "machine": machine,
        "days": interval_text(entry.days),
        "slower": "" if entry.place.slower is None else interval_text(entry.place.slower),
        "setting": best.label,
        "batch": batch_text(best.micro_batch, best.accumulation, row.machine.devices),
        "limit": "" if best.utilisation is None else share_text(best.utilisation),
        "floor": "" if best.share_of_floor is None else share_text(best.share_of_floor),
        "mfu": "" if best.mfu is None else share_text(best.mfu),
        "memory": bytes_text(best.peak_bytes),
        "kwh": "" if entry.kwh is None else figures(entry.kwh),
        "node_kwh": "" if entry.node_kwh is None else figures(entry.node_kwh),
        "co2": "" if entry.co2_kg is None else figures(entry.co2_kg),
        "level": level_text(row.level, trusted=row.trusted),
        "run": row.run_id,
        "note": "; ".join(_entry_notes(entry)),
    }


def doubts(entry: Entry) -> Iterator[str]:
    """Yield reasons to read the entry's figures with care."""
    if not entry.row.complete:
        yield "INCOMPLETE: more settings may be faster"
    if entry.row.marks:
        yield f"{', '.join(mark.kind for mark in entry.row.marks)}: see below"
    if entry.differs_in:
        yield "NOT ALIKE: " + ", ".join(entry.differs_in)


def _entry_notes(entry: Entry) -> Iterator[str]:
    yield from doubts(entry)
    if limits := entry.row.searched.limits:
        yield f"searched only {limits}"
    if entry.in_time and not entry.offers:  # if it has offers, their notes say this
        yield IN_TIME[entry.in_time]


def machine_rows(part: ModelPart) -> list[dict[str, str]]:
    """Format every machine, by column: those that were measured, then those that were not."""
    empty = dict.fromkeys(HEADERS, "")
    measured = (cells(entry, machine) for entry, machine in named_entries(part))
    return [*measured, *(empty | guess_cells(guess) for guess in part.guesses)]


def offers(part: ModelPart, comparison: Comparison) -> list[tuple[tuple[str, ...], bool]]:
    """Return a row of texts for each offer, and whether the offer answers one of the user's questions."""
    measured = [
        (_offer_row(entry, machine, offer, comparison), bool(offer.marks))
        for entry, machine in named_entries(part)
        for offer in entry.offers
    ]
    guessed = [
        (guess_offer_row(guess, offer, comparison.currency, comparison.wish.runs), bool(offer.marks))
        for guess in part.guesses
        for offer in guess.offers
    ]
    return measured + guessed


def _offer_row(entry: Entry, machine: str, offer: Offer, comparison: Comparison) -> tuple[str, ...]:
    currency = comparison.currency
    run_cost = money_text(offer.run_cost, currency)
    notes = "; ".join(_offer_notes(entry, offer, comparison))
    worth = offer_worth(offer.units_per_currency, entry.row.unit, currency)
    return (
        offer.kind,
        machine,
        interval_text(entry.days),
        price_text(offer, currency),
        run_cost,
        *worth,
        notes,
    )


def offer_worth(units_per_currency: float | None, unit: str, currency: str) -> tuple[str, str]:
    """Format tokens for money, as 450M tokens/$, and the cost of a billion of them."""
    if units_per_currency is None:
        return "", ""
    worth = f"{short_count(units_per_currency)} {unit}/{currency_sign(currency).strip()}"
    return worth, money_text(1e9 / units_per_currency, currency)


def _offer_notes(entry: Entry, offer: Offer, comparison: Comparison) -> Iterator[str]:
    if offer.marks:
        yield "<- " + ", ".join(offer.marks)
    yield from doubts(entry)  # the days and the costs of an offer are as doubtful as the figure behind them
    machine = entry.row.machine
    yield from paid_for(machine.nodes, machine.devices, offer.gpus)
    if offer.in_budget is False:
        yield "over budget"
    if offer.outlived:
        yield f"too slow for {count_text(comparison.wish.runs, 'run')} in {life_text(comparison)}"
    elif comparison.wish.runs > 1:
        yield f"{money_text(offer.spend, comparison.currency)} for {comparison.wish.runs:,} runs"
    if entry.in_time:
        yield IN_TIME[entry.in_time]
    if offer.unmetered:
        yield "without electricity: its power was not measured"
    if (even := offer.break_even) is not None and even.reachable(comparison.utilisation):
        runs = f"{even.runs:,} runs in {comparison.life_years:g} years"
        yield f"beats the cheapest rent from {runs} on ({100 * even.utilisation:.0f}% of its life)"
    elif even is not None:
        yield f"never beats the cheapest rent in {life_text(comparison)}"
    if offer.rent_always_less:
        yield "its electricity and upkeep alone cost more than the cheapest rent"


def life_text(comparison: Comparison) -> str:
    """Format a machine's life, and how much of it trains."""
    percent = figures(100 * comparison.utilisation, 6)
    share = "" if comparison.utilisation == 1 else f", in use {percent}% of it"
    return f"{comparison.life_years:g} years{share}"

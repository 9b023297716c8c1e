"""Format a comparison as table, Markdown, CSV or JSON, and its numbers for the HTML page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.base.strict_json import pretty_json, to_json
from bench.bundle.verdict import level_text
from bench.records.estimate import TO_SIGMA, Interval
from bench.records.marks import MEANING
from bench.records.slowdown import slowed_text
from bench.records.spread import shipped_spreads
from bench.records.text import (
    batch_text,
    bytes_text,
    count_text,
    figures,
    interval_text,
    money_text,
    share_text,
)
from bench.report.compare.compared_rows import Machine, RankedRow, Row, UncertainFastest
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.extrapolate import LEAST_HELD_OUT, Extrapolation
from bench.report.compare.offers import Offer
from bench.report.text import terminal
from bench.report.text.escapes import csv_lines, markdown_text

HEADERS: Mapping[str, str] = {
    "rank": "",
    "machine": "machine",
    "days": "days",
    "slower": "times the fastest",
    "setting": "setting",
    "batch": "batch",
    "limit": "of limit",
    "floor": "of floor",
    "memory": "memory",
    "kwh": "kWh a run",
    "level": "level",
    "run": "run",
    "note": "",
}
# Columns for which a narrow terminal has no room, the first to go first. JSON, CSV and the report have all.
SPARE = (
    "run", "level", "kWh a run", "of floor", "of limit", "memory", "batch", "times the fastest", "setting",
)  # fmt: skip
SPARE_OF_OFFERS = ("days",)
TEXT_COLUMNS = frozenset({"machine", "setting", "level", "run", "note"})
Table = tuple[Sequence[Sequence[str]], Sequence[str], Sequence[str]]


def machine_names(part: ModelPart) -> list[str]:
    """Name each entry's machine; if several are of one kind, with the file name of the bundle."""
    kinds = Counter(entry.row.machine.label for entry in part.entries)
    return [
        row.machine.label if kinds[row.machine.label] == 1 else f"{row.machine.label} ({Path(row.path).stem})"
        for row in (entry.row for entry in part.entries)
    ]


def cells(entry: Entry, machine: str) -> dict[str, str]:
    """Format the figures of an entry, by column; empty if there is no figure."""
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
        "memory": bytes_text(best.peak_bytes),
        "kwh": "" if entry.kwh is None else figures(entry.kwh),
        "level": level_text(row.level, row.trusted),
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


def columns(part: ModelPart) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns that are not empty, and the texts in them."""
    rows = list(map(cells, part.entries, machine_names(part)))
    names = [name for name in HEADERS if any(row[name] for row in rows)]
    return names, [[row[name] for name in names] for row in rows]


def table(comparison: Comparison) -> str:
    if not comparison.parts:
        return "nothing to compare"
    blocks = [_text_part(part, comparison) for part in comparison.parts]
    return "\n\n".join([*blocks, terminal.wrapped(notes(comparison), " " * 4)])


def _text_part(part: ModelPart, comparison: Comparison) -> str:
    tables = "\n\n".join(
        terminal.narrowed(*each, SPARE_OF_OFFERS if each[1] == OFFER_HEADERS else SPARE)
        for each in _tables(part, comparison)
    )
    remark_lines = terminal.wrapped(remarks(part, comparison), " " * 4)
    title = terminal.wrapped([part.title], " " * 4)
    return "\n".join([title, *filter(None, (tables, remark_lines))])


def _tables(part: ModelPart, comparison: Comparison) -> Iterator[Table]:
    """Yield rows, heads and alignment of the table of machines and that of offers, unless they are empty."""
    if part.entries:
        names, rows = columns(part)
        aligned = ["left" if name in TEXT_COLUMNS else "right" for name in names]
        yield rows, [HEADERS[name] for name in names], aligned
    if priced := [row for row, _ in offers(part, comparison)]:
        yield priced, OFFER_HEADERS, OFFER_ALIGN


IN_TIME = {"yes": "meets the deadline", "perhaps": "may miss the deadline", "no": "misses the deadline"}
OFFER_ALIGN = ("left", "left", "right", "right", "right", "left")
OFFER_HEADERS = ("", "machine", "days", "price", "a run", "")


def offers(part: ModelPart, comparison: Comparison) -> list[tuple[tuple[str, ...], bool]]:
    """Return a row of texts for each offer, and whether the offer answers one of the user's questions."""
    return [
        (_offer_row(entry, machine, offer, comparison), bool(offer.marks))
        for entry, machine in zip(part.entries, machine_names(part), strict=True)
        for offer in entry.offers
    ]


def _offer_row(entry: Entry, machine: str, offer: Offer, comparison: Comparison) -> tuple[str, ...]:
    currency = comparison.currency
    price = money_text(offer.price, currency) + (" an hour" if offer.kind == "rent" else "")
    run_cost = money_text(offer.run_cost, currency)
    notes = "; ".join(_offer_notes(entry, offer, comparison))
    return offer.kind, machine, interval_text(entry.days), price, run_cost, notes


def remarks(part: ModelPart, comparison: Comparison) -> Iterator[str]:
    """Yield lines under a table: unanswered questions, missing prices, doubts, estimates, rows set apart."""
    wish, priced = comparison.wish, any(entry.offers for entry in part.entries)
    if part.nothing_in_budget:
        yield f"nothing fits the budget of {money_text(wish.budget or 0, comparison.currency)}"
    if part.nothing_in_time:
        within = " within the budget" if wish.budget is not None and priced else ""
        yield f"nothing{within} is certain to meet the deadline of {figures(wish.deadline_days or 0)} days"
    if priced or comparison.own_prices or wish.budget is not None or wish.deadline_days is not None:
        for gap in dict.fromkeys(gap for entry in part.entries for gap in entry.gaps):
            yield f"{gap}: --prices FILE can add one"
    if (cap := dict(part.conditions).get("memory cap", "none")) != "none":
        yield f"memory capped at {cap} of each device: speed and price are those of the whole device"
    named = list(zip((entry.row for entry in part.entries), machine_names(part), strict=True))
    yield from (_close_line(row, row.close, machine) for row, machine in named if row.close)
    yield from (f"on trust: {machine}: {row.on_trust}" for row, machine in named if row.on_trust)
    for row, machine in named:
        yield from _gradient_remarks(row, machine)
        if (other := part.not_replaced_by(row)) is not None:
            yield f"less trusted: {machine} does not replace {other.path}, a run on the same GPUs: both count"
        for mark in row.marks:
            seen = f"{machine}, {mark.text}, while its figure was measured"
            yield f"{mark.kind}: {seen}: {MEANING[mark.kind]}"
    yield from map(_estimate_line, part.guesses)
    for apart in part.apart:
        reasons = "; ".join(apart.reasons)
        yield f"not compared: {apart.row.path}: {apart.row.machine.label} ({reasons})"
    valid = comparison.bundles - len(comparison.refused)
    with_model = sum(len(one.rows) for one in comparison.parts if one.model == part.model)
    if part.number == 1 and (without := valid - with_model):
        yield f"{without:,} of {count_text(valid, 'bundle')} without this model"


def _gradient_remarks(row: RankedRow, machine: str) -> Iterator[str]:
    """Yield the settings with wrong gradients, and why those of the fastest were not checked."""
    wrong = [attempt for attempt in row.attempts if attempt.outcome == "wrong-gradients"]
    for label, reason in dict.fromkeys((attempt.label, attempt.reason) for attempt in wrong):
        yield f"WRONG GRADIENTS: {machine}, {label}: {reason}"
    if row.best.no_gradient_check:
        yield f"gradients not checked: {machine}, {row.best.label}: {row.best.no_gradient_check}"


def _close_line(row: RankedRow, doubt: UncertainFastest, machine: str) -> str:
    """Say how sure the fastest setting is, in the words of `run_table`, and name its runner-up."""
    rival = doubt.rival
    return (
        f"close: {machine}, {row.best.label} is within 1% of the fastest measured with "
        f"{doubt.confidence:.0%} confidence; next: {rival.label} at micro-batch {rival.micro_batch}, "
        f"{interval_text(rival.days)} days"
    )


def _estimate_line(guess: Extrapolation) -> str:
    machine = f"{guess.gpus}x {guess.gpu.removeprefix('NVIDIA ')}"
    floor = f"not under {figures(guess.at_peak_days)} days at the vendor's peak"
    if guess.days is None:
        return f"ESTIMATE {machine}: {floor}; {guess.basis}"
    rows = count_text(guess.held_out, "row")
    if guess.predicted and guess.low_days is not None and guess.high_days is not None:
        bar = f"90%: {figures(guess.low_days)} to {figures(guess.high_days)}"
    elif guess.low_days is None or guess.high_days is None:
        bar = f"no error bar: {rows} to test the estimate on, {LEAST_HELD_OUT} are needed"
    else:
        bar = f"95%: {figures(guess.low_days)} to {figures(guess.high_days)}, tested on {rows}"
    return f"ESTIMATE {machine}: about {figures(guess.days)} days ({bar}); {floor}; from {guess.basis}"


def paid_for(machine: Machine, gpus: int) -> Iterator[str]:
    """Say which machines a price with so many GPUs pays for, unless they are exactly those that trained."""
    if machine.nodes > 1:
        yield f"{machine.nodes} machines with {count_text(gpus, 'GPU')} each, without their network"
    elif gpus > machine.devices:
        yield f"price of a machine with {gpus} GPUs"


def _offer_notes(entry: Entry, offer: Offer, comparison: Comparison) -> Iterator[str]:
    if offer.marks:
        yield "<- " + ", ".join(offer.marks)
        yield from doubts(entry)  # repeated beside the recommendation
    yield from paid_for(entry.row.machine, offer.gpus)
    if offer.in_budget is False:
        yield "over budget"
    if offer.outlived:
        yield f"too slow for {count_text(comparison.wish.runs, 'run')} in {_life(comparison)}"
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
        yield f"never beats the cheapest rent in {_life(comparison)}"
    if offer.rent_always_less:
        yield "its electricity alone costs more than the cheapest rent"


def _life(comparison: Comparison) -> str:
    share = (
        "" if comparison.utilisation == 1 else f", in use {figures(100 * comparison.utilisation, 6)}% of it"
    )
    return f"{comparison.life_years:g} years{share}"


def wish_notes(comparison: Comparison) -> Iterator[str]:
    """Yield the questions that the recommendations answer, as a line; nothing if nothing was asked."""
    wish, questions = comparison.wish, []
    if wish.budget is not None:
        questions.append(f"the fastest machine that {money_text(wish.budget, comparison.currency)} pays for")
    if wish.deadline_days is not None:
        questions.append(f"the cheapest that is certain to do a run in {figures(wish.deadline_days, 4)} days")
    if questions:
        yield f"asked: {', and '.join(questions)}; for {count_text(wish.runs, 'run')} of a model"


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield footnotes: what the columns mean, and the quotes behind the money."""
    entries = [entry for part in comparison.parts for entry in part.entries]
    yield from wish_notes(comparison)
    yield "kinds of machine of equal rank are not provably different at 95%"
    yield f"±  95% interval of a run on another machine of the kind: the run's own, and {_spread_text()}"
    if any(part.number > 1 for part in comparison.parts):
        yield "figures of one model under other conditions are ranked apart; --rank-all ranks them together"
    if any(part.apart for part in comparison.parts):
        yield "--settings shows every figure of every bundle"
    if any(entry.kwh is not None for entry in entries):
        yield (
            "kWh a run: the GPUs alone, from their energy counters while steps were timed; left out if"
            " optimizer updates took a larger share of those steps than they take of training"
        )
    if any(entry.row.best.share_of_floor is not None for entry in entries):
        yield (
            "of floor: the time of the model's own products, convolutions, attention and scans alone, as a"
            " share of the step; at most the rest can be won"
        )
    if any(entry.offers for entry in entries):
        life = _life(comparison)
        yield "price: of the whole machine with all its GPUs; of all machines that train together"
        yield f"a run, bought: its share of the machine's price over {life}, and electricity if priced"
        yield from (f"quoted: {quote}" for quote in comparison.quotes)


def _spread_text() -> str:
    spreads = shipped_spreads()
    machine, day = (100 * one / TO_SIGMA for one in (spreads.another_machine, spreads.another_day))
    return f"{machine:.1f}% between machines (on the same machine, {day:.1f}% between days)"


def markdown(comparison: Comparison) -> str:
    blocks = []
    for part in comparison.parts:
        lines = [f"### {markdown_text(part.title)}", ""]
        if tables := [_pipes(*each) for each in _tables(part, comparison)]:
            lines.append("\n\n".join(tables))
        if remark_lines := [f"- {markdown_text(line)}" for line in remarks(part, comparison)]:
            lines += ["", *remark_lines]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, "\n".join(f"- {markdown_text(note)}" for note in notes(comparison))])


def _pipes(rows: Sequence[Sequence[str]], heads: Sequence[str], aligned: Sequence[str]) -> str:
    safe = [[markdown_text(cell) for cell in row] for row in rows]
    return tabulate(safe, heads, tablefmt="pipe", disable_numparse=True, colalign=aligned)


def json_text(comparison: Comparison) -> str:
    return pretty_json(to_json(comparison)).decode()


CSV_COLUMNS = (
    "model", "rank", "machine", "devices", "days", "days_half_width", "slower", "slower_half_width",
    "setting", "micro_batch", "accumulation", "step_seconds", "units_per_second", "unit", "utilisation",
    "peak_bytes", "kwh", "currency", "buy_price", "buy_run_cost", "rent_hour", "rent_run_cost", "level",
    "trusted", "complete", "run", "bundle", "not_compared", "not_alike", "nodes", "in_time", "buy_spend",
    "buy_in_budget", "buy_outlived", "buy_unmetered", "buy_answers", "rent_gpus", "rent_spend",
    "rent_in_budget", "rent_answers", "break_even_runs", "break_even_utilisation",
    "slowed", "share_of_floor", "group", "searched", "half_width_another_day", "half_width_another_machine",
    "marks",
)  # fmt: skip


def csv_text(comparison: Comparison) -> str:
    """Write a row for each machine and model, with every digit; a row that is not ranked says why."""
    rows = [
        row
        for part in comparison.parts
        for row in (
            *(_csv_entry(part, entry) | {"currency": comparison.currency} for entry in part.entries),
            *(_csv_row(part, apart.row) | {"not_compared": "; ".join(apart.reasons)} for apart in part.apart),
        )
    ]
    return csv_lines(CSV_COLUMNS, ([row.get(name) for name in CSV_COLUMNS] for row in rows))


def _csv_row(part: ModelPart, row: Row) -> dict[str, Any]:
    """Return the cells that every row has, ranked or not."""
    return {
        "model": part.model,
        "machine": row.machine.name,
        "devices": row.machine.devices,
        "level": row.level,
        "run": row.run_id,
        "bundle": row.path,
        "group": ", ".join(part.differs_in),
        "searched": str(row.searched),
    }


def _csv_entry(part: ModelPart, entry: Entry) -> dict[str, Any]:
    row, best = entry.row, entry.row.best
    slower = entry.place.slower or Interval(1.0, 0.0)
    return _csv_row(part, row) | {
        "rank": entry.place.rank,
        "days": best.days.value,
        "days_half_width": best.days.half_width,
        "half_width_another_day": entry.on_another_day.half_width,
        "half_width_another_machine": entry.days.half_width,
        "slower": slower.value,
        "slower_half_width": slower.half_width,
        "setting": best.label,
        "micro_batch": best.micro_batch,
        "accumulation": best.accumulation,
        "step_seconds": best.step_seconds.value,
        "units_per_second": best.units_per_second,
        "unit": row.unit,
        "utilisation": best.utilisation,
        "peak_bytes": best.peak_bytes,
        "kwh": entry.kwh,
        "trusted": row.trusted,
        "complete": row.complete,
        "not_alike": "; ".join(entry.differs_in),
        "nodes": row.machine.nodes,
        "in_time": entry.in_time,
        "slowed": row.slowed and slowed_text(row.slowed),
        "marks": "; ".join(f"{mark.kind}: {mark.text}" for mark in row.marks),
        "share_of_floor": best.share_of_floor,
        **_csv_offers(entry),
    }


def _csv_offers(entry: Entry) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for offer in entry.offers:
        kind = offer.kind
        cells |= {
            f"{kind}_run_cost": offer.run_cost,
            f"{kind}_spend": offer.spend,
            f"{kind}_in_budget": offer.in_budget,
            f"{kind}_answers": "; ".join(offer.marks),
        }
        if kind == "rent":
            cells |= {"rent_hour": offer.price, "rent_gpus": offer.gpus}
            continue
        even = offer.break_even
        cells |= {
            "buy_price": offer.price,
            "buy_outlived": offer.outlived,
            "buy_unmetered": offer.unmetered,
            "break_even_runs": even and even.runs,
            "break_even_utilisation": even and even.utilisation,
        }
    return cells


FORMATS = {"table": table, "markdown": markdown, "csv": csv_text, "json": json_text}

"""A comparison spelled as table, Markdown or JSON. Every spelling of a number is made in `cells`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from bench.base.strict_json import pretty_json, to_json
from bench.records.slowdown import HEALTHY, slowed_text
from bench.records.text import batch_text, bytes_text, count_text, figures, interval_text, money_text
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.extrapolate import Extrapolation
from bench.report.compare.offers import Offer
from bench.report.text import terminal
from bench.report.text.comparison_csv import csv_text

HEADERS: Mapping[str, str] = {
    "rank": "", "machine": "machine", "days": "days", "slower": "times the fastest", "setting": "setting",
    "batch": "batch", "limit": "of limit", "memory": "memory", "kwh": "kWh a run",
    "level": "level", "run": "run", "note": "",
}  # fmt: skip
TEXT_COLUMNS = frozenset({"machine", "setting", "level", "run", "note"})


def called(part: ModelPart) -> list[str]:
    """Each entry's machine; of several of one kind, with the file of its bundle."""
    kinds = Counter(entry.row.machine.label for entry in part.entries)
    return [
        row.machine.label if kinds[row.machine.label] == 1 else f"{row.machine.label} ({Path(row.path).stem})"
        for row in (entry.row for entry in part.entries)
    ]


def cells(entry: Entry, machine: str) -> dict[str, str]:
    """One machine's figures in words; an empty text where there is none."""
    row, best = entry.row, entry.row.best
    assert best is not None
    assert best.days is not None
    return {
        "rank": str(entry.place.rank),
        "machine": machine,
        "days": interval_text(best.days),
        "slower": "" if entry.place.slower is None else interval_text(entry.place.slower),
        "setting": best.label,
        "batch": batch_text(best.micro_batch, best.accumulation, row.machine.devices),
        "limit": "" if best.utilisation is None else f"{100 * best.utilisation:.0f}%",
        "memory": "" if best.peak_bytes is None else bytes_text(best.peak_bytes),
        "kwh": "" if entry.kwh is None else figures(entry.kwh),
        "level": row.level + (" (trusted)" if row.trusted else ""),
        "run": row.run_id,
        "note": "; ".join(_entry_notes(entry)),
    }


def _doubts(entry: Entry) -> Iterator[str]:
    if not entry.row.complete:
        yield "INCOMPLETE: more settings may be faster"
    if entry.row.slowed:
        yield "SLOWED: see below"
    if entry.differs_in:
        yield "NOT ALIKE: " + ", ".join(entry.differs_in)


def _entry_notes(entry: Entry) -> Iterator[str]:
    yield from _doubts(entry)
    if entry.in_time and not entry.offers:  # with a price, its offers say so
        yield IN_TIME[entry.in_time]


def columns(part: ModelPart) -> tuple[list[str], list[list[str]]]:
    """The columns that say anything, and the texts in them."""
    every = list(map(cells, part.entries, called(part)))
    kept = [name for name in HEADERS if any(row[name] for row in every)]
    return kept, [[row[name] for name in kept] for row in every]


def table(comparison: Comparison) -> str:
    if not comparison.parts:
        return "nothing to compare"
    blocks = [_text_part(part, comparison) for part in comparison.parts]
    return "\n\n".join([*blocks, terminal.wrapped(notes(comparison), " " * 4)])


def _text_part(part: ModelPart, comparison: Comparison) -> str:
    lines = [part.model]
    if part.entries:
        names, rows = columns(part)
        aligned = ["left" if name in TEXT_COLUMNS else "right" for name in names]
        heads = [HEADERS[name] for name in names]
        lines.append(terminal.table(rows, heads, aligned))
    if found := [row for row, _ in offers(part, comparison)]:
        lines += ["", terminal.table(found, OFFER_HEADERS, OFFER_ALIGN)]
    if said := remarks(part, comparison):
        lines.append(terminal.wrapped(said, " " * 4))
    return "\n".join(lines)


IN_TIME = {
    "yes": "meets the deadline", "perhaps": "may miss the deadline", "no": "misses the deadline",
}  # fmt: skip
OFFER_ALIGN = ("left", "left", "right", "right", "right", "left")
OFFER_HEADERS = ("", "machine", "days", "price", "a run", "")


def offers(part: ModelPart, comparison: Comparison) -> list[tuple[tuple[str, ...], bool]]:
    """Buying and renting, a row an offer, and whether it is what was asked for."""
    return [
        (_offer_row(entry, machine, offer, comparison), bool(offer.marks))
        for entry, machine in zip(part.entries, called(part), strict=True)
        for offer in entry.offers
    ]


def _offer_row(entry: Entry, machine: str, offer: Offer, comparison: Comparison) -> tuple[str, ...]:
    currency, best = comparison.currency, entry.row.best
    assert best is not None
    assert best.days is not None
    price = money_text(offer.price, currency) + (" an hour" if offer.kind == "rent" else "")
    run = money_text(offer.run_cost, currency)
    said = "; ".join(_offer_notes(entry, offer, comparison))
    return offer.kind, machine, interval_text(best.days), price, run, said


def remarks(part: ModelPart, comparison: Comparison) -> list[str]:
    """What no offer answers, which prices are missing, and what is not compared."""
    wish, lines = comparison.wish, []
    priced = any(entry.offers for entry in part.entries)
    if part.nothing_in_budget:
        lines.append(f"nothing fits the budget of {money_text(wish.budget or 0, comparison.currency)}")
    if part.nothing_in_time:
        where = " within the budget" if wish.budget is not None and priced else ""
        lines.append(f"nothing{where} surely meets {figures(wish.deadline_days or 0)} days")
    asked = wish.budget is not None or wish.deadline_days is not None or comparison.own_prices
    if priced or asked:
        missing = dict.fromkeys(gap for entry in part.entries for gap in entry.gaps)
        lines += [f"{gap}: --prices can have one" for gap in missing]
    if (cap := dict(part.conditions).get("memory cap", "none")) != "none":
        lines.append(f"memory capped at {cap} of each device: a larger one at its own speed and price")
    named = list(zip((entry.row for entry in part.entries), called(part), strict=True))
    lines += [_close_line(row, machine) for row, machine in named if row.close]
    lines += [f"on trust: {machine}: {row.on_trust}" for row, machine in named if row.on_trust]
    lines += [
        f"SLOWED: {machine}, {slowed_text(row.slowed)}, while its figure was measured: {HEALTHY}"
        for row, machine in named
        if row.slowed
    ]
    lines += [_guess_line(one) for one in part.guesses]
    lines += [f"not compared: {text}" for text in apart(part)]
    good = comparison.bundles - len(comparison.refused)
    if without := good - len(part.entries) - len(part.apart):
        lines.append(f"{without:,} of {count_text(good, 'bundle')} without this model")
    return lines


def _close_line(row: Row, machine: str) -> str:
    """In the words of the run's own summary."""
    assert row.best is not None
    assert row.close is not None
    other = row.close.rival
    assert other.days is not None
    return (
        f"close: {machine}, {row.best.label} is within 1% of the fastest measured with "
        f"{row.close.confidence:.0%} confidence; surer: {other.label} at micro-batch {other.micro_batch}, "
        f"{interval_text(other.days)} days"
    )


def _guess_line(one: Extrapolation) -> str:
    """Never mistaken for a measurement."""
    machine = f"{one.gpus}x {one.gpu.removeprefix('NVIDIA ')}"
    floor = f"not under {figures(one.at_peak_days)} at the vendor's peak"
    if one.days is None:
        return f"ESTIMATE {machine}: {floor}; {one.basis}"
    if one.low_days is None or one.high_days is None:
        bar = f"no error bar: {count_text(one.held_out, 'row')} to hold out"
    else:
        bar = f"{figures(one.low_days)} to {figures(one.high_days)}, from {one.held_out} rows held out"
    return f"ESTIMATE {machine}: about {figures(one.days)} days ({bar}); {floor}; from {one.basis}"


def _offer_notes(entry: Entry, offer: Offer, comparison: Comparison) -> Iterator[str]:
    if offer.marks:
        yield "<- " + ", ".join(offer.marks)
        yield from _doubts(entry)  # whoever looks for the recommendation reads no other line
    machine = entry.row.machine
    if machine.nodes > 1:
        yield f"{machine.nodes} machines with {count_text(offer.gpus, 'GPU')} each, without their network"
    elif offer.gpus > machine.devices:
        yield f"of a machine with {offer.gpus} GPUs"
    if offer.in_budget is False:
        yield "over budget"
    if offer.outlived:
        yield f"too slow for {count_text(comparison.wish.runs, 'run')} in {_life(comparison)}"
    elif comparison.wish.runs > 1:
        yield f"{money_text(offer.spend, comparison.currency)} for {comparison.wish.runs:,} runs"
    if entry.in_time:
        yield IN_TIME[entry.in_time]
    if offer.unmetered:
        yield "without electricity: what it draws was not measured"
    if (even := offer.break_even) is not None and even.reachable(comparison.utilisation):
        runs = f"{even.runs:,} runs in {comparison.life_years:g} years"
        yield f"beats the cheapest rent from {runs} on ({100 * even.utilisation:.0f}% of its life)"
    elif even is not None:
        yield f"never beats the cheapest rent in {_life(comparison)}"
    if offer.rent_always_less:
        yield "its electricity alone costs more than the cheapest rent"


def _life(comparison: Comparison) -> str:
    share = "" if comparison.utilisation == 1 else f", in use {100 * comparison.utilisation:g}% of it"
    return f"{comparison.life_years:g} years{share}"


def apart(part: ModelPart) -> list[str]:
    return [f"{one.row.path}: {one.row.machine.label} ({'; '.join(one.reasons)})" for one in part.apart]


def asked(comparison: Comparison) -> list[str]:
    """What the recommendations answer: who sees nothing but them cannot know."""
    wish, wanted = comparison.wish, []
    if wish.budget is not None:
        wanted.append(f"the fastest that {money_text(wish.budget, comparison.currency)} pays for")
    if wish.deadline_days is not None:
        wanted.append(f"the cheapest that surely does each run in {figures(wish.deadline_days, 4)} days")
    if not wanted:
        return []
    return [f"asked: {', and '.join(wanted)}; for {count_text(wish.runs, 'run')} of a model"]


def notes(comparison: Comparison) -> list[str]:
    """What the columns mean, and what the money rests on."""
    lines = [
        *asked(comparison),
        "equal ranks are not provably different at 95%",
        "±  95% interval of the run's own samples; between two runs, with what two processes differ by",
    ]
    if any(part.apart for part in comparison.parts):
        lines.append("--rank-all ranks what is not compared, too; --settings shows all its figures")
    if any(e.kwh is not None for part in comparison.parts for e in part.entries):
        lines.append(
            "kWh a run: the GPUs alone, by their own energy counters while steps were timed; none where those"
            " steps were more updates than training is"
        )
    if any(e.offers for part in comparison.parts for e in part.entries):
        lines.append("price: of the whole machine, all its GPUs together; of all machines that train as one")
        lines.append(f"a run, owned: the machine's price over {_life(comparison)}, by the days of the run")
        lines += [f"quoted: {quote}" for quote in comparison.quotes]
    return lines


def markdown(comparison: Comparison) -> str:
    blocks = []
    for part in comparison.parts:
        lines = [f"### {_safe(part.model)}", ""]
        if part.entries:
            names, rows = columns(part)
            safe = [[_safe(cell) for cell in row] for row in rows]
            aligned = ["left" if name in TEXT_COLUMNS else "right" for name in names]
            heads = [HEADERS[name] for name in names]
            lines.append(_pipes(safe, heads, aligned))
        if said := [row for row, _ in offers(part, comparison)]:
            safe = [[_safe(cell) for cell in row] for row in said]
            lines += ["", _pipes(safe, OFFER_HEADERS, OFFER_ALIGN)]
        if more := remarks(part, comparison):
            lines += ["", *(f"- {_safe(line)}" for line in more)]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, "\n".join(f"- {_safe(note)}" for note in notes(comparison))])


def _pipes(rows: list[list[str]], heads: Sequence[str], aligned: Sequence[str]) -> str:
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True, colalign=aligned)


def _safe(cell: str) -> str:
    """Text of a bundle never begins a column of its own."""
    return cell.replace("|", "\\|")


def json_text(comparison: Comparison) -> str:
    return pretty_json(to_json(comparison)).decode()


FORMATS = {"table": table, "markdown": markdown, "csv": csv_text, "json": json_text}


def texts(part: ModelPart, comparison: Comparison) -> Sequence[str]:
    """Every spelled figure of a part, for those who hold one output against another."""
    ranked = [cell for row in columns(part)[1] for cell in row]
    return [
        cell for cell in [*ranked, *(cell for row, _ in offers(part, comparison) for cell in row)] if cell
    ]

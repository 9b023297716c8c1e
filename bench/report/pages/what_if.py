"""What-if: controls by which a reader changes limits, runs and rents, and the report updates its answers.

In: a Comparison. Out: a hidden section with its data and its script, which shows the section and fills it.
Without JavaScript nothing is seen of it. The script decides by the rules of `bench.report.compare.appraisal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.base.strict_json import to_json
from bench.records.text import currency_sign
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.markup import Markup, asset, data_block, el, fragment
from bench.report.text.guess_text import paid_for
from bench.report.text.machine_rows import IN_TIME, doubts, named_entries

MOST_RUNS = 1_000.0
# The ends of the slider of a rent, as multiples of its quote, and without a quote as a whole.
RENTS_AROUND_QUOTE, RENTS = (0.1, 10.0), (0.1, 1_000.0)
SHOWN_RENTS = 4  # more are folded


@dataclass(frozen=True, slots=True)
class Control:
    """A number that the reader may change: a text field, and a slider with a logarithmic scale."""

    id: str  # of its elements; names of two cards may be equal but for blanks and hyphens
    name: str  # as the page's link spells it
    words: str
    hint: str  # shown in an empty field
    low: float
    high: float


def what_if(comparison: Comparison) -> Markup:
    """Make the section; empty if nothing is ranked."""
    parts = [part for part in comparison.parts if part.entries]
    if not parts:
        return fragment()
    limits = el("div", *map(_field, _limits(comparison, parts)), class_="wishes")
    about = (
        "The answers below follow from the measured figures by the rules of bench compare, and the link of"
        " this page keeps what you change. The rest of the page stays as it was asked."
    )
    state = el("p", el("button", "As asked", type="reset"), " ", el("span", id="what-if-state"))
    folded = el(
        "details",
        el("summary", "Change budget, deadline, runs, utilisation and rents"),
        el("p", about, class_="muted"),
        el("form", limits, _rents(comparison, parts), state),
        el("div", id="what-if-answers"),
    )
    section = el("section", el("h2", "What if"), folded, id="what-if", hidden="")
    script = el("script", Markup(asset("rules.js") + asset("what_if.js")))
    return fragment(section, data_block("what-if-data", _data(comparison, parts)), script)


def _limits(comparison: Comparison, parts: Iterable[ModelPart]) -> Iterator[Control]:
    """Yield the controls that concern every machine; sliders end a little beyond the figures of the page."""
    entries = [entry for part in parts for entry in part.entries]
    offers = [offer for entry in entries for offer in entry.offers]
    wish, sign = comparison.wish, currency_sign(comparison.currency).strip()
    money = [amount for o in offers for amount in (o.run_cost, o.spend)] or [100.0, 1_000_000.0]
    low, high = _around([*money, *([wish.budget] if wish.budget else [])])
    yield Control("budget", "budget", f"Budget, {sign}", "no limit", low, high)
    days = [entry.days.value for entry in entries]
    low, high = _around([*days, *([wish.deadline_days] if wish.deadline_days else [])])
    yield Control("deadline", "deadline", "Deadline, days", "no limit; 14, 14d, 36h", low, high)
    yield Control("runs", "runs", "Number of runs", "", 1.0, max(MOST_RUNS, wish.runs))
    yield Control("utilisation", "utilisation", "Utilisation, %", "", 1.0, 100.0)


def _around(values: list[float]) -> tuple[float, float]:
    return min(values) / 2, max(values) * 2


def _rents(comparison: Comparison, parts: Iterable[ModelPart]) -> Markup:
    """Make a control for the rent of each kind of machine; the kind's first quote sets the scale."""
    quotes: dict[str, float | None] = {}
    for part in parts:
        for entry in part.entries:
            if entry.row.machine.kind == "cuda" and quotes.get(entry.machine.label) is None:
                quotes[entry.machine.label] = entry.machine.rent
    if not quotes:
        return fragment()
    sign = currency_sign(comparison.currency).strip()
    controls = (
        Control(
            f"rent-{number}",
            f"rent:{label}",
            f"Rent of {label}, {sign} an hour",
            "no rent",
            *_rents_around(quote),
        )
        for number, (label, quote) in enumerate(sorted(quotes.items()))
    )
    fields = el("div", *map(_field, controls), class_="wishes")
    folded = None if len(quotes) <= SHOWN_RENTS else el("summary", f"Rents of {len(quotes)} kinds of machine")
    return fields if folded is None else el("details", folded, fields)


def _rents_around(quote: float | None) -> tuple[float, float]:
    return RENTS if quote is None else (quote * RENTS_AROUND_QUOTE[0], quote * RENTS_AROUND_QUOTE[1])


def _field(control: Control) -> Markup:
    """Make a text field and a slider for one number, each with a label, and a place for an error."""
    text, slider, mistake = (f"what-if-{control.id}-{kind}" for kind in ("text", "slider", "mistake"))
    return el(
        "div",
        el("label", control.words, for_=text),
        el(
            "input", id=text, name=control.name, type="text", inputmode="decimal", autocomplete="off",
            placeholder=control.hint or None, aria_describedby=mistake,
        ),
        el("label", f"{control.words}: slider", for_=slider, class_="heard"),
        el(
            "input", id=slider, type="range", min=0, max=200, step=1, autocomplete="off",
            data_low=repr(control.low), data_high=repr(control.high),
        ),
        el("p", id=mistake, class_="mistake"),
    )  # fmt: skip


def _data(comparison: Comparison, parts: Iterable[ModelPart]) -> dict[str, Any]:
    """Return the data from which the script decides, and the texts that no control changes."""
    wish = comparison.wish
    return {
        "sign": currency_sign(comparison.currency),
        "life": f"{comparison.life_years:g} years",
        "life_days": comparison.life_days,
        "asked": {
            "budget": wish.budget,
            "deadline": wish.deadline_days,
            "runs": wish.runs,
            "utilisation": comparison.utilisation,
        },
        "in_time": IN_TIME,
        "models": [
            {
                "title": part.title,
                "machines": [_machine(entry, name) for entry, name in named_entries(part)],
            }
            for part in parts
        ],
    }


def _machine(entry: Entry, name: str) -> dict[str, Any]:
    machine = entry.row.machine
    gpus = {offer.kind: offer.gpus for offer in entry.offers} | {"own": machine.devices // machine.nodes}
    found: dict[str, Any] = to_json(entry.machine)
    return found | {
        "name": name,
        "rentable": machine.kind == "cuda",
        "doubts": list(doubts(entry)),
        "paid_for": {kind: list(paid_for(machine.nodes, machine.devices, n)) for kind, n in gpus.items()},
        "unmetered": any(offer.unmetered for offer in entry.offers),
    }

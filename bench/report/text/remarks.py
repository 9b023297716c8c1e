"""Remarks about a model's figures, and notes about all of them, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.records.busy import waiting_text
from bench.records.estimate import TO_SIGMA
from bench.records.marks import MEANING, marked_text
from bench.records.spread import shipped_spreads
from bench.records.text import (
    count_text,
    interval_text,
    money_text,
    multiplied_text,
    other_precision_text,
)
from bench.report.compare.compared_rows import RankedRow, UncertainFastest
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.decision import Certainty
from bench.report.text.answer_text import days_text
from bench.report.text.guess_text import estimate_line
from bench.report.text.machine_rows import life_text, named_entries

ABOUT = "about these figures"


def remarks(part: ModelPart, comparison: Comparison) -> Iterator[str]:
    """Yield remarks about a model's figures, sorted by what they are about.

    The order is: the answer, whether a figure holds, ranks, money, and rows that are left out.
    """
    named = [(entry.row, machine) for entry, machine in named_entries(part)]
    yield from unanswered(part, comparison)
    for row, machine in named:
        yield from _wrong_gradients(row, machine)
        for mark in row.marks:
            seen = f"{machine}, {mark.text}, while its figure was measured"
            yield f"{mark.kind}: {seen}: {MEANING[mark.kind]}"
    yield from (f"on trust: {machine}: {row.on_trust}" for row, machine in named if row.on_trust)
    yield from map(estimate_line, part.guesses)
    yield from (_close_line(row, row.close, machine) for row, machine in named if row.close)
    for row, machine in named:
        if (other := part.not_replaced_by(row)) is not None:
            yield f"less trusted: {machine} does not replace {other.path}, a run on the same GPUs: both count"
    yield from _missing_prices(part, comparison)
    if (cap := dict(part.conditions).get("memory cap", "none")) != "none":
        yield f"memory capped at {cap} of each device: speed and price are those of the whole device"
    for row, machine in named:
        if row.best.no_gradient_check:
            yield f"gradients not checked: {machine}, {row.best.label}: {row.best.no_gradient_check}"
        if row.trained and (text := other_precision_text(row.products, row.trained, row.best.setting)):
            yield f"OTHER PRECISION: {machine}, {row.best.label}: {text}"
        if text := waiting_text(row.busy_share, row.best.setting):
            yield f"waits: {machine}, {row.best.label} at micro-batch {row.best.micro_batch}: {text}"
    yield from _left_out(part, comparison)


def _missing_prices(part: ModelPart, comparison: Comparison) -> Iterator[str]:
    wish = comparison.wish
    asked = comparison.own_prices or wish.budget is not None or wish.deadline_days is not None
    if asked or any(part.every_offer):
        can_add = ": --prices FILE can add one"  # for GPUs: a file of prices has no CPUs
        gaps = [
            (gap, can_add if e.row.machine.kind == "cuda" else "") for e in part.entries for gap in e.gaps
        ]
        gaps += [(gap, can_add) for guess in part.guesses for gap in guess.gaps]
        yield from (gap + advice for gap, advice in dict.fromkeys(gaps))


def _left_out(part: ModelPart, comparison: Comparison) -> Iterator[str]:
    """Yield the rows that are not ranked, and how many bundles have no row of this model."""
    for apart in part.apart:
        reasons = "; ".join(apart.reasons)
        yield f"not compared: {apart.row.path}: {apart.row.machine.label} ({reasons})"
    valid = comparison.bundles - len(comparison.refused)
    with_model = sum(len(one.rows) for one in comparison.parts if one.model == part.model)
    if part.number == 1 and (without := valid - with_model):
        yield f"{without:,} of {count_text(valid, 'bundle')} without this model"


def unanswered(part: ModelPart, comparison: Comparison) -> Iterator[str]:
    """Yield each question that no measured machine answers, with the guesses that may answer it."""
    wish, priced = comparison.wish, any(entry.offers for entry in part.entries)
    if part.nothing_in_budget:
        budget = f"the budget of {money_text(wish.budget or 0, comparison.currency)}"
        by_guess = [(guess.label, guess.best_in_budget) for guess in part.guesses]
        yield _nothing("", f"fits {budget}", by_guess)
    if part.nothing_in_time:
        within = " within the budget" if wish.budget is not None and priced else ""
        deadline = f"is certain to meet the deadline of {days_text(wish.deadline_days or 0, 4)}"
        by_guess = [(g.label, g.in_time_and_budget if within else g.in_time) for g in part.guesses]
        yield _nothing(within, deadline, by_guess)


def _nothing(within: str, fits: str, by_guess: Sequence[tuple[str, Certainty | None]]) -> str:
    surely = ", ".join(label for label, verdict in by_guess if verdict == "yes")
    perhaps = ", ".join(label for label, verdict in by_guess if verdict == "perhaps")
    if not surely and not perhaps:
        return f"nothing{within} {fits}"
    found = [f"estimates that do: {surely}"] if surely else []
    found += [f"estimates that perhaps do: {perhaps}"] if perhaps else []
    return "; ".join([f"nothing measured{within} {fits}", *found])


def _wrong_gradients(row: RankedRow, machine: str) -> Iterator[str]:
    wrong = [attempt for attempt in row.attempts if attempt.outcome == "wrong-gradients"]
    for label, reason in dict.fromkeys((attempt.label, attempt.reason) for attempt in wrong):
        yield f"WRONG GRADIENTS: {machine}, {label}: {reason}"


def _close_line(row: RankedRow, doubt: UncertainFastest, machine: str) -> str:
    """Say how sure the fastest setting is, in the words of `run_table`, and name its runner-up."""
    rival = doubt.rival
    return (
        f"close: {machine}, {row.best.label} is within 1% of the fastest measured with "
        f"{doubt.confidence:.0%} confidence; next: {rival.label} at micro-batch {rival.micro_batch}, "
        f"{marked_text(f'{interval_text(rival.days)} days', rival.marks)}"
    )


def multiplied_lines(part: ModelPart) -> Iterator[str]:
    """Yield for each machine what a pass of its fastest setting multiplies, if its bundle says so."""
    for entry, machine in named_entries(part):
        if text := multiplied_text(entry.row.products, entry.row.no_products):
            yield f"{machine}, {entry.row.best.label}: {text}"


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield footnotes: the meaning of columns, and the quotes behind the money."""
    entries = [entry for part in comparison.parts for entry in part.entries]
    yield "kinds of machine of equal rank are not provably different at 95%"
    yield f"±  95% interval of a run on another machine of the kind: the run's own, and {_spread_text()}"
    if any(part.guesses for part in comparison.parts):
        yield (
            "est: estimated, never measured and never ranked; in brackets what holds nine of ten estimates,"
            " or 95% where the line ESTIMATE says so; --estimate adds machines"
        )
    if any(part.number > 1 for part in comparison.parts):
        yield "figures of one model under other conditions are ranked apart; --rank-all ranks them together"
    if any(part.apart for part in comparison.parts):
        yield "--settings shows every figure of every bundle"
    if any(entry.kwh is not None for entry in entries):
        yield (
            "kWh a run: the GPUs alone, from their energy counters while steps were timed; left out if"
            " optimizer updates took a larger share of those steps than they take of training"
        )
        yield from comparison.energy.texts
    if any(entry.row.best.share_of_floor is not None for entry in entries):
        yield (
            "of floor: the time of the model's own products, convolutions, attention and scans alone, as a"
            " share of the step; at most the rest can be won"
        )
    if any(entry.row.best.mfu is not None for entry in entries):
        share = "the model's own arithmetic, without recomputation, as a share of the vendor's dense peak"
        yield f"MFU: {share}"
    if any(entry.offers for entry in entries):
        yield "worth: what money trains at the cost of a run"
        yield "a billion: what a billion tokens, images or pairs cost, at the cost of a run"
        life = life_text(comparison)
        yield "price: of the whole machine with all its GPUs; of all machines that train together"
        shares = f"its share of the machine's price over {life}, and electricity and upkeep if priced"
        yield f"a run, bought: {shares}"
        yield from (f"quoted: {quote}" for quote in comparison.quotes)


def _spread_text() -> str:
    spreads = shipped_spreads()
    machine, day = (100 * one / TO_SIGMA for one in (spreads.another_machine, spreads.another_day))
    return f"{machine:.1f}% between machines (on the same machine, {day:.1f}% between days)"

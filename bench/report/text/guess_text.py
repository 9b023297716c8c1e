"""Format guesses: rows of machines that were not measured, and say so. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.records.text import count_text, figures, money_text
from bench.report.compare.extrapolate import LEAST_HELD_OUT
from bench.report.compare.offers import Offer
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess, days_text

RANK = "est"  # in place of a rank, which only measured machines have
IN_TIME = {
    "yes": "meets the deadline, by estimate",
    "perhaps": "perhaps meets the deadline",
    "no": "misses the deadline, by estimate",
}
IN_BUDGET = {"perhaps": "perhaps over budget", "no": "over budget"}


def guess_cells(guess: PricedGuess) -> dict[str, str]:
    """Format the figures of a guess, by column of the table of machines; other columns stay empty."""
    notes = ["ESTIMATE, not measured"]
    if guess.in_time and not guess.offers:  # if it has offers, their notes say this
        notes.append(IN_TIME[guess.in_time])
    return {
        "rank": RANK,
        "machine": guess.label,
        "days": days_text(guess),
        "level": "estimate",
        "note": "; ".join(notes),
    }


def guess_offer_row(guess: PricedGuess, offer: GuessOffer, currency: str, runs: int) -> tuple[str, ...]:
    """Format the offer of a guessed machine as a row of the table of offers."""
    notes = "; ".join(_offer_notes(guess, offer, currency, runs))
    cost = money_text(offer.run_cost, currency)
    return offer.kind, guess.label, days_text(guess), price_text(offer, currency), cost, "", "", notes


def _offer_notes(guess: PricedGuess, offer: GuessOffer, currency: str, runs: int) -> Iterator[str]:
    if offer.marks:
        yield "<- " + ", ".join(offer.marks)
    yield f"ESTIMATE{_cost_ends(offer, currency)}"
    yield from paid_for(guess.nodes, guess.gpus, offer.gpus)
    if offer.in_budget in IN_BUDGET:
        yield IN_BUDGET[offer.in_budget]
    if offer.outlived:
        yield f"perhaps too slow for {count_text(runs, 'run')} in its life"
    elif runs > 1:
        yield f"{money_text(offer.spend, currency)} for {runs:,} runs"
    if guess.in_time:
        yield IN_TIME[guess.in_time]
    if offer.unmetered:
        yield "without electricity: its power was not measured"


def price_text(offer: Offer | GuessOffer, currency: str) -> str:
    """Format the price to buy the machine, or to rent it for an hour."""
    return money_text(offer.price, currency) + (" an hour" if offer.kind == "rent" else "")


def paid_for(nodes: int, trained: int, gpus: int) -> Iterator[str]:
    """Say which machines a price with `gpus` GPUs pays for, unless they are exactly those that trained."""
    if nodes > 1:
        yield f"{nodes} machines with {count_text(gpus, 'GPU')} each, without their network"
    elif gpus > trained:
        yield f"price of a machine with {gpus} GPUs"


def _cost_ends(offer: GuessOffer, currency: str) -> str:
    """Format both ends of the cost of a run: ", $994 to $1,440 a run"; nothing without an upper end."""
    if offer.most_run_cost is None:
        return ""
    least, most = money_text(offer.least_run_cost, currency), money_text(offer.most_run_cost, currency)
    return f", {least} to {most} a run"


def estimate_line(guess: PricedGuess) -> str:
    """Name the basis of the guess, and the meaning of its interval."""
    floor = f"not under {figures(guess.at_peak_days)} days at the vendor's peak"
    if guess.days is None:
        return f"ESTIMATE {guess.label}: {floor}; {guess.basis}"
    rows = count_text(guess.held_out, "row")
    if guess.predicted and guess.low_days is not None and guess.high_days is not None:
        bar = f"90%: {figures(guess.low_days)} to {figures(guess.high_days)}"
    elif guess.low_days is None or guess.high_days is None:
        bar = f"no error bar: {rows} to test the estimate on, {LEAST_HELD_OUT} are needed"
    else:
        bar = f"95%: {figures(guess.low_days)} to {figures(guess.high_days)}, tested on {rows}"
    return f"ESTIMATE {guess.label}: about {figures(guess.days)} days ({bar}); {floor}; from {guess.basis}"


def csv_guess(guess: PricedGuess) -> dict[str, Any]:
    """Return the cells of a guess, without a rank; `not_compared` says that the machine was not measured."""
    cells: dict[str, Any] = {
        "machine": guess.gpu,
        "devices": guess.gpus,
        "nodes": guess.nodes,
        "estimate": True,
        "days": guess.days,
        "low_days": guess.low_days,
        "high_days": guess.high_days,
        "at_peak_days": guess.at_peak_days,
        "in_time": guess.in_time,
        "level": "estimate",
        "not_compared": f"an estimate, not measured: {guess.basis}",
    }
    for offer in guess.offers:
        kind = offer.kind
        cells |= {
            **csv_offer(offer),
            f"{kind}_least_run_cost": offer.least_run_cost,
            f"{kind}_most_run_cost": offer.most_run_cost,
        }
    return cells


def csv_offer(offer: Offer | GuessOffer) -> dict[str, Any]:
    """Return the cells that the offer of a measured machine and that of a guess both have."""
    kind = offer.kind
    cells = {
        f"{kind}_run_cost": offer.run_cost,
        f"{kind}_spend": offer.spend,
        f"{kind}_in_budget": offer.in_budget,
        f"{kind}_answers": "; ".join(offer.marks),
    }
    if kind == "rent":
        return {**cells, "rent_hour": offer.price, "rent_gpus": offer.gpus}
    return {
        **cells,
        "buy_price": offer.price,
        "buy_outlived": offer.outlived,
        "buy_unmetered": offer.unmetered,
    }

"""Format a comparison as CSV: a row for each machine and model, with every digit. Pure."""

from __future__ import annotations

from typing import Any

from bench.records.estimate import Interval
from bench.records.slowdown import slowed_text
from bench.report.compare.compared_rows import Row
from bench.report.compare.comparison import Comparison, Entry, ModelPart
from bench.report.compare.priced_guesses import PricedGuess
from bench.report.text.escapes import csv_lines
from bench.report.text.guess_text import csv_guess, csv_offer

CSV_COLUMNS = (
    "model", "rank", "machine", "devices", "days", "days_half_width", "slower", "slower_half_width",
    "setting", "micro_batch", "accumulation", "step_seconds", "units_per_second", "unit", "utilisation",
    "peak_bytes", "kwh", "currency", "buy_price", "buy_run_cost", "rent_hour", "rent_run_cost", "level",
    "trusted", "complete", "run", "bundle", "not_compared", "not_alike", "nodes", "in_time", "buy_spend",
    "buy_in_budget", "buy_outlived", "buy_unmetered", "buy_answers", "rent_gpus", "rent_spend",
    "rent_in_budget", "rent_answers", "break_even_runs", "break_even_utilisation",
    "slowed", "share_of_floor", "group", "searched", "half_width_another_day", "half_width_another_machine",
    "marks", "estimate", "low_days", "high_days", "at_peak_days", "buy_least_run_cost", "buy_most_run_cost",
    "rent_least_run_cost", "rent_most_run_cost", "mfu", "buy_units_per_currency", "rent_units_per_currency",
    "node_kwh", "co2_kg", "busy_share",
)  # fmt: skip


def csv_text(comparison: Comparison) -> str:
    """Write a row for each machine and model. Numbers have every digit; a row without a rank has its reason.

    The estimates of a part follow its measured machines and are marked as estimates.
    """
    rows = [
        row
        for part in comparison.parts
        for row in (
            *(_csv_entry(part, entry) | {"currency": comparison.currency} for entry in part.entries),
            *(_csv_guess(part, guess) | {"currency": comparison.currency} for guess in part.guesses),
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


def _csv_guess(part: ModelPart, guess: PricedGuess) -> dict[str, Any]:
    return {"model": part.model, "group": ", ".join(part.differs_in), "unit": part.unit} | csv_guess(guess)


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
        "mfu": best.mfu,
        "busy_share": row.busy_share,
        "node_kwh": entry.node_kwh,
        "co2_kg": entry.co2_kg,
        **_csv_offers(entry),
    }


def _csv_offers(entry: Entry) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for offer in entry.offers:
        cells |= {**csv_offer(offer), f"{offer.kind}_units_per_currency": offer.units_per_currency}
        if offer.kind == "buy":
            even = offer.break_even
            cells |= {
                "break_even_runs": even and even.runs,
                "break_even_utilisation": even and even.utilisation,
            }
    return cells

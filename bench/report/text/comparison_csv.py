"""A comparison as CSV: a row a machine, for other programs."""

from __future__ import annotations

import csv
import io
from typing import Any

from bench.records.estimate import Interval
from bench.records.slowdown import slowed_text
from bench.report.compare.comparison import Comparison, Entry, ModelPart, SetApart
from bench.report.compare.offers import Offer

CSV_COLUMNS = (
    "model", "rank", "machine", "devices", "days", "days_half_width", "slower", "slower_half_width",
    "setting", "micro_batch", "accumulation", "step_seconds", "units_per_second", "unit", "utilisation",
    "peak_bytes", "kwh", "currency", "buy_price", "buy_run_cost", "rent_hour", "rent_run_cost", "level",
    "trusted", "complete", "run", "bundle", "not_compared", "not_alike", "nodes", "in_time", "buy_spend",
    "buy_in_budget", "buy_outlived", "buy_unmetered", "buy_answers", "rent_gpus", "rent_spend",
    "rent_in_budget", "rent_answers", "break_even_runs", "break_even_utilisation",
    "slowed",
)  # fmt: skip


def csv_text(comparison: Comparison) -> str:
    """Every digit of every figure; what is not ranked has no rank, and says why."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for part in comparison.parts:
        for entry in part.entries:
            writer.writerow(_csv_entry(part, entry, comparison.currency))
        for one in part.apart:
            writer.writerow(_csv_apart(part, one))
    return out.getvalue()


def _csv_apart(part: ModelPart, one: SetApart) -> dict[str, Any]:
    row = one.row
    return {
        "model": part.model, "machine": row.machine.name, "devices": row.machine.devices, "level": row.level,
        "run": row.run_id, "bundle": row.path, "not_compared": "; ".join(one.reasons),
    }  # fmt: skip


def _csv_entry(part: ModelPart, entry: Entry, currency: str) -> dict[str, Any]:
    row, best = entry.row, entry.row.best
    assert best is not None
    assert best.days is not None
    assert best.step_seconds is not None
    offers = {offer.kind: offer for offer in entry.offers}
    buy, rent = offers.get("buy"), offers.get("rent")
    slower = entry.place.slower or Interval(1.0, 0.0)
    found: dict[str, Any] = {
        "model": part.model, "rank": entry.place.rank, "machine": row.machine.name,
        "devices": row.machine.devices, "days": best.days.value, "days_half_width": best.days.half_width,
        "slower": slower.value, "slower_half_width": slower.half_width, "setting": best.label,
        "micro_batch": best.micro_batch, "accumulation": best.accumulation,
        "step_seconds": best.step_seconds.value, "units_per_second": best.units_per_second,
        "unit": row.unit, "utilisation": best.utilisation, "peak_bytes": best.peak_bytes, "kwh": entry.kwh,
        "currency": currency, "buy_price": buy and buy.price, "buy_run_cost": buy and buy.run_cost,
        "rent_hour": rent and rent.price, "rent_run_cost": rent and rent.run_cost, "level": row.level,
        "trusted": row.trusted, "complete": row.complete, "run": row.run_id, "bundle": row.path,
        "slowed": row.slowed and slowed_text(row.slowed),
    }  # fmt: skip
    return {name: _csv_value(value) for name, value in (found | _csv_decision(entry, buy, rent)).items()}


def _csv_decision(entry: Entry, buy: Offer | None, rent: Offer | None) -> dict[str, Any]:
    """What the tables say in words."""
    even = buy and buy.break_even
    return {
        "not_alike": "; ".join(entry.differs_in), "nodes": entry.row.machine.nodes, "in_time": entry.in_time,
        "buy_spend": buy and buy.spend, "buy_in_budget": buy and buy.in_budget,
        "buy_outlived": buy and buy.outlived, "buy_unmetered": buy and buy.unmetered,
        "buy_answers": buy and "; ".join(buy.marks), "rent_gpus": rent and rent.gpus,
        "rent_spend": rent and rent.spend, "rent_in_budget": rent and rent.in_budget,
        "rent_answers": rent and "; ".join(rent.marks), "break_even_runs": even and even.runs,
        "break_even_utilisation": even and even.utilisation,
    }  # fmt: skip


def _csv_value(value: Any) -> Any:
    """As other programs read it: true, not Python's True."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value

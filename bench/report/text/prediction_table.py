"""Predictions as a table, as CSV, and explained part by part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from tabulate import tabulate

from bench.planning.prediction.predicted_machines import Predicted, PredictedPart, Unpredicted
from bench.records.text import figures, money_text
from bench.report.compare.priced_predictions import PricedPrediction, machine_text
from bench.report.text.escapes import csv_lines

WIDTH = 79  # columns
MOST_GPUS = 512  # of the rows that predictions are held against
NOT_MEASURED = "predicted, not measured: bench run on the machine decides"
ERRORS = "90% within: as far as models and cards that were left out (docs/prediction.md)"
CSV_COLUMNS = (
    "model", "gpu", "gpus", "setting", "micro_batch", "accumulation", "step_seconds", "days", "least_days",
    "most_days", "limit", "memory_bytes", "kwh", "rented_run", "owned_run", "units_per_currency", "currency",
)  # fmt: skip


def prediction_text(
    models: Sequence[str],
    rows: Sequence[PricedPrediction],
    without: Sequence[Unpredicted],
    currency: str,
    *,
    own: bool = False,
) -> Iterator[str]:
    """Yield the lines of a table for each model, the fastest machine first; `own` shows what owning costs."""
    for name in models:
        yield f"{name}, predicted"
        of_model = by_days(name, rows)
        if of_model:
            yield _table(of_model, currency, own=own)
            for label in dict.fromkeys(row.predicted.label for row in of_model):
                machines = ", ".join(_with_batch(r.predicted) for r in of_model if r.predicted.label == label)
                yield fill(f"{label}: {machines}", WIDTH)
        else:
            yield "no machine that was asked for is predicted within these limits"
        for reason in reasons_of(name, without):
            yield fill(f"not predicted  {reason}", WIDTH)
        yield ""
    yield from caveats(rows)


def reasons_of(model: str, without: Sequence[Unpredicted]) -> Iterator[str]:
    """Yield why machines are not predicted for a model, those of one reason together."""
    for reason in dict.fromkeys(one.reason for one in without if one.model == model):
        alike = (machine_text(one) for one in without if (one.model, one.reason) == (model, reason))
        yield f"{', '.join(alike)}: {reason}"


def caveats(rows: Sequence[PricedPrediction]) -> Iterator[str]:
    """Yield what a reader of predictions must know."""
    yield NOT_MEASURED
    yield ERRORS
    if any(row.predicted.gpus > MOST_GPUS for row in rows):
        yield f"more than {MOST_GPUS} GPUs: no prediction for so many was ever held against a measurement"


def by_days(model: str, rows: Sequence[PricedPrediction]) -> list[PricedPrediction]:
    """Return the rows of a model, the fastest machine first."""
    return sorted((row for row in rows if row.predicted.model == model), key=lambda row: row.predicted.days)


def _table(rows: Sequence[PricedPrediction], currency: str, *, own: bool) -> str:
    cost = "an owned run" if own else "a rented run"
    return tabulate(
        [_cells(row, currency, own=own) for row in rows],
        ("machine", "days", "90% within", "limit", cost),
        disable_numparse=True,
        colalign=("left", "right", "left", "left", "right"),
    )


def _cells(row: PricedPrediction, currency: str, *, own: bool) -> tuple[str, ...]:
    found, cost = row.predicted, row.cost(own=own)
    return (
        machine_text(found),
        figures(found.days),
        f"{figures(found.least_days)} to {figures(found.most_days)}",
        found.limit,
        "-" if cost is None else money_text(cost.amount, currency),
    )


def _with_batch(found: Predicted) -> str:
    return f"{machine_text(found)} ({found.micro_batch} x {found.accumulation})"


def explained(row: PricedPrediction, currency: str) -> Iterator[str]:
    """Yield where each figure of a prediction came from."""
    found = row.predicted
    batch = f"micro-batch {found.micro_batch} x {found.accumulation}"
    yield fill(f"{found.model} on {machine_text(found)}: {found.label}, {batch}", WIDTH)
    parts = [
        (part.name, f"{part.amount:.3g} {part.unit}", _rate(part), f"{1000 * part.seconds:.3g}")
        for part in found.parts
    ]
    headers = ("part", "work of a pass", "rate", "ms a pass")
    yield tabulate(parts, headers, disable_numparse=True, colalign=("left", "right", "left", "right"))
    passes, step = found.pass_seconds, found.step_seconds
    yield f"update      {1000 * found.update_seconds:.3g} ms"
    yield f"step        {found.accumulation} x {passes:.4g} s + update = {step:.4g} s"
    yield fill(f"products    {found.source}", WIDTH, subsequent_indent=" " * 12)
    for cost in filter(None, (row.rented, row.owned)):
        what = "rented run" if cost is row.rented else "owned run"
        said = f"{what}  {money_text(cost.amount, currency)}: {'; '.join(cost.quotes)}"
        yield fill(said, WIDTH, subsequent_indent=" " * 12)


def _rate(part: PredictedPart) -> str:
    if part.name == "exchange":
        return "beside computing"
    rate = part.amount / part.seconds
    match part.unit:
        case "operations":
            return f"{figures(rate / 1e12)} TFLOP/s"
        case "bytes":
            return f"{figures(rate / 1e9)} GB/s"
        case "elements":
            return f"{figures(rate / 1e9)} billion/s"


def prediction_csv(rows: Sequence[PricedPrediction], currency: str) -> str:
    return csv_lines(CSV_COLUMNS, (_csv_row(row, currency) for row in rows))


def _csv_row(row: PricedPrediction, currency: str) -> tuple[object, ...]:
    found, costs = row.predicted, (row.rented, row.owned)
    return (
        found.model, found.gpu, found.gpus, found.label, found.micro_batch, found.accumulation,
        found.step_seconds, found.days, found.least_days, found.most_days, found.limit, found.memory_bytes,
        found.kwh, *(one.amount if one else None for one in costs), row.units_per_dollar, currency,
    )  # fmt: skip

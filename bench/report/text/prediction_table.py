"""Predictions as a table, as CSV, and explained part by part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.base.terminal import Column, Table, Wrapped, fitted_tables, plain_columns, table, wrapped
from bench.planning.prediction.predicted_machines import PredictedPart, Unpredicted
from bench.records.text import figures, money_text
from bench.report.compare.priced_predictions import PricedPrediction, RunCost, machine_text
from bench.report.text.escapes import csv_lines

WIDTH = 79  # columns of explanations where no terminal has another width
# Before the columns of energy that have figures, and a column of costs.
COLUMNS = (
    Column("machine", "machine", fixed=True),
    Column("days", "days", right=True),
    Column("within", "90% within"),
    Column("limit", "limit"),
)
ENERGY_COLUMNS = (Column("node_kwh", "node kWh", right=True), Column("co2", "kg CO2", right=True))
STEPS = ("limit", "node_kwh", Wrapped("machine", 12), "within")
PART_STEPS = ("rate", Wrapped("part", 12))
MOST_GPUS = 512  # of the measured rows with which predictions were compared
NOT_MEASURED = "predicted, not measured: bench run on the machine decides"
ERRORS = "90% within: as far as models and cards that were left out (docs/prediction.md)"
CSV_COLUMNS = (
    "model", "gpu", "gpus", "setting", "micro_batch", "accumulation", "step_seconds", "days", "least_days",
    "most_days", "limit", "memory_bytes", "kwh", "rented_run", "owned_run", "units_per_currency", "currency",
    "node_kwh", "co2_kg",
)  # fmt: skip


def prediction_text(
    models: Sequence[str],
    rows: Sequence[PricedPrediction],
    without: Sequence[Unpredicted],
    currency: str,
    *,
    outside: Sequence[PricedPrediction],
    own: bool,
    energy: Sequence[str],
) -> Iterator[str]:
    """Yield the lines of a table for each model, the fastest machine first; `own` shows what owning costs.

    `outside` are rows that miss the deadline or the budget: the fastest is named where no other row is left.
    `energy` says what the figures of energy and CO2 contain, if there are any.
    """
    found = {name: by_days(name, rows) for name in models}
    tables = iter(
        fitted_tables([_table(some, currency, own=own) for some in found.values() if some], STEPS).texts
    )
    for name, of_model in found.items():
        yield f"{name}, predicted"
        if of_model:
            yield next(tables)
            for label in dict.fromkeys(row.predicted.label for row in of_model):
                alike = (row.predicted for row in of_model if row.predicted.label == label)
                machines = (f"{machine_text(p)} ({p.micro_batch} x {p.accumulation})" for p in alike)
                yield _filled(f"{label}: {', '.join(machines)}")
        else:
            yield _filled(nothing_fits(by_days(name, outside), currency, own=own))
        for reason in reasons_of(name, without):
            yield _filled(f"not predicted  {reason}")
        yield ""
    at_limit = [f"{text}; at the GPUs' power limit, which is more than they draw" for text in energy]
    yield wrapped([*caveats(rows), *at_limit], " " * 4)


def _filled(text: str, indent: str = "") -> str:
    return wrapped([text], indent, WIDTH)


def nothing_fits(outside: Sequence[PricedPrediction], currency: str, *, own: bool) -> str:
    """Say that no machine is predicted within the limits, and how far the best ones are outside of them.

    `outside` has the fastest machine first. The cheapest is named, too, if it is another one.
    """
    if not outside:
        return "no machine that was asked for has a prediction"
    text = "no machine that was asked for is predicted within these limits; the fastest is "
    text += _machine_outside(outside[0], outside[0].cost(own=own), currency)
    costs = [(row, cost) for row in outside if (cost := row.cost(own=own)) is not None]
    if costs:
        cheapest, cost = min(costs, key=lambda pair: pair[1].amount)
        if cheapest is not outside[0]:
            text += f"; the cheapest is {_machine_outside(cheapest, cost, currency)}"
    return text


def _machine_outside(row: PricedPrediction, cost: RunCost | None, currency: str) -> str:
    found = row.predicted
    days = f"{figures(found.days)} days, {figures(found.least_days)} to {figures(found.most_days)}"
    price = f", {money_text(cost.amount, currency)} a run" if cost else ""
    return f"{machine_text(found)}: {days}{price}"


def reasons_of(model: str, without: Sequence[Unpredicted]) -> Iterator[str]:
    """Yield why machines are not predicted for a model, those of one reason together."""
    for reason in dict.fromkeys(entry.reason for entry in without if entry.model == model):
        alike = (machine_text(entry) for entry in without if (entry.model, entry.reason) == (model, reason))
        yield f"{', '.join(alike)}: {reason}"


def caveats(rows: Sequence[PricedPrediction]) -> Iterator[str]:
    """Yield the limits of predictions that a reader must know."""
    yield NOT_MEASURED
    yield ERRORS
    if any(row.predicted.gpus > MOST_GPUS for row in rows):
        yield f"more than {MOST_GPUS} GPUs: no prediction for that number was compared with a measurement"


def by_days(model: str, rows: Sequence[PricedPrediction]) -> list[PricedPrediction]:
    """Return the rows of a model, the fastest machine first."""
    return sorted((row for row in rows if row.predicted.model == model), key=lambda row: row.predicted.days)


def _table(rows: Sequence[PricedPrediction], currency: str, *, own: bool) -> Table:
    cost = Column("cost", "an owned run" if own else "a rented run", right=True)
    columns = (*COLUMNS, *ENERGY_COLUMNS, cost)
    whole = Table(columns, [_cells(row, currency, own=own) for row in rows])
    unknown = {"node_kwh"} if all(row.node_kwh is None for row in rows) else set()
    unknown |= {"co2"} if all(row.co2_kg is None for row in rows) else set()
    return whole.without(unknown)


def _cells(row: PricedPrediction, currency: str, *, own: bool) -> tuple[str, ...]:
    found, cost = row.predicted, row.cost(own=own)
    return (
        machine_text(found),
        figures(found.days),
        f"{figures(found.least_days)} to {figures(found.most_days)}",
        found.limit,
        "-" if row.node_kwh is None else figures(row.node_kwh),
        "-" if row.co2_kg is None else figures(row.co2_kg),
        "-" if cost is None else money_text(cost.amount, currency),
    )


def explained(row: PricedPrediction, currency: str) -> Iterator[str]:
    """Yield where each figure of a prediction came from."""
    found = row.predicted
    batch = f"micro-batch {found.micro_batch} x {found.accumulation}"
    yield _filled(f"{found.model} on {machine_text(found)}: {found.label}, {batch}")
    parts = [
        (part.name, f"{part.amount:.3g} {part.unit}", _rate(part), f"{1000 * part.seconds:.3g}")
        for part in found.parts
    ]
    yield table(
        Table(plain_columns(("part", "work of a pass", "rate", "ms a pass"), (1, 3)), parts), PART_STEPS
    )
    passes, step = found.pass_seconds, found.step_seconds
    yield f"update      {1000 * found.update_seconds:.3g} ms"
    yield _filled(f"step        {found.accumulation} x {passes:.4g} s + update = {step:.4g} s", " " * 12)
    yield _filled(f"products    {found.source}", " " * 12)
    for cost in filter(None, (row.rented, row.owned)):
        what = "rented run" if cost is row.rented else "owned run"
        said = f"{what}  {money_text(cost.amount, currency)}: {'; '.join(cost.quotes)}"
        yield _filled(said, " " * 12)


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
    """Write a row for each prediction, with every digit; an unknown cost is an empty cell."""
    return csv_lines(CSV_COLUMNS, (_csv_row(row, currency) for row in rows))


def _csv_row(row: PricedPrediction, currency: str) -> tuple[object, ...]:
    found, costs = row.predicted, (row.rented, row.owned)
    return (
        found.model, found.gpu, found.gpus, found.label, found.micro_batch, found.accumulation,
        found.step_seconds, found.days, found.least_days, found.most_days, found.limit, found.memory_bytes,
        found.kwh, *(one.amount if one else None for one in costs), row.units_per_dollar, currency,
        row.node_kwh, row.co2_kg,
    )  # fmt: skip

"""`bench predict`: days and dollars of machines that are not here, with an error bar."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill

from tabulate import tabulate

from bench.base.gpu_catalogue import GpuModel, gpu_models
from bench.base.strict_json import pretty_json
from bench.cli.machines import machine_named
from bench.planning.manifest import load_manifest
from bench.planning.prediction.card_rates import GPUS_A_NODE
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.records.text import figures, money_text
from bench.report.compare.price_file import load_prices
from bench.report.compare.prices import PriceBook, Priced, RentKind
from bench.training.models.dry_build import rehearse

WIDTH = 79  # columns
ALL = "all"
ALL_COUNTS = (1, 8)  # GPUs of each kind that "all" stands for


@dataclass(frozen=True, slots=True)
class PredictArguments:
    manifest: Path
    gpus: str  # h200,8xh100,all
    prices: Path | None = None
    rent: RentKind = "on-demand"
    budget: float | None = None  # US dollars for one rented run
    deadline_days: float | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class PricedPrediction:
    """A prediction and what a rented run of it costs; None without a rent."""

    predicted: Predicted
    run_cost: float | None
    quote: str | None  # with provider, source and date


def predict(request: PredictArguments) -> int:
    manifest = load_manifest(request.manifest)
    counted = rehearse(manifest.models, str(request.manifest)).counted
    book = load_prices(request.prices).renting(request.rent)
    predictor = Predictor(manifest, counted, shipped_fit())
    rows, without = [], []
    for gpu, count in _machines(request.gpus):
        for found in predictor.predict(gpu, count):
            if isinstance(found, Unpredicted):
                without.append(found)
            else:
                rows.append(_row(found, book))
    kept = [row for row in rows if _wanted(row, request)]
    if request.as_json:
        document = {
            "schema": "bench/prediction/v1",
            "manifest": manifest.digest,
            "currency": book.currency,
            "predicted": [asdict(row) for row in kept],
            "unpredicted": [asdict(one) for one in without],
        }
        sys.stdout.write(pretty_json(document).decode())
    else:
        names = [model.name for model in manifest.models]
        print("\n".join(_text(names, kept, without, book)))
    return 0 if kept else 1


def _machines(text: str) -> Iterator[tuple[GpuModel, int]]:
    for word in text.split(","):
        if word == ALL:
            yield from ((gpu, count) for gpu in gpu_models() for count in ALL_COUNTS)
        else:
            yield machine_named(word, "--gpu")


def _row(found: Predicted, book: PriceBook) -> PricedPrediction:
    machines = math.ceil(found.gpus / GPUS_A_NODE)
    rent = book.to_rent(found.gpu, math.ceil(found.gpus / machines))
    if not isinstance(rent, Priced):
        return PricedPrediction(found, None, None)
    return PricedPrediction(found, rent.amount * machines * found.days * 24, rent.quotes[0])


def _wanted(row: PricedPrediction, request: PredictArguments) -> bool:
    in_time = request.deadline_days is None or row.predicted.most_days <= request.deadline_days
    in_budget = request.budget is None or (row.run_cost is not None and row.run_cost <= request.budget)
    return in_time and in_budget


def _text(
    names: Sequence[str], rows: Sequence[PricedPrediction], without: Sequence[Unpredicted], book: PriceBook
) -> Iterator[str]:
    for name in names:
        of_model = sorted(
            (row for row in rows if row.predicted.model == name), key=lambda r: r.predicted.days
        )
        yield f"{name}, predicted"
        if of_model:
            yield tabulate(
                [_cells(row, book) for row in of_model],
                ("machine", "days", "90% within", "limit", "a rented run"),
                disable_numparse=True,
                colalign=("left", "right", "left", "left", "right"),
            )
            for label in dict.fromkeys(row.predicted.label for row in of_model):
                machines = ", ".join(_with_batch(r.predicted) for r in of_model if r.predicted.label == label)
                yield fill(f"{label}: {machines}", WIDTH)
        else:
            yield "no machine that was asked for is predicted within these limits"
        for reason in dict.fromkeys(one.reason for one in without if one.model == name):
            alike = ", ".join(_machine(one) for one in without if (one.model, one.reason) == (name, reason))
            yield fill(f"not predicted  {alike}: {reason}", WIDTH)
        yield ""
    yield "predicted, not measured: bench run on the machine decides"
    yield "90% within: as far as models and cards that were left out (docs/prediction.md)"


def _cells(row: PricedPrediction, book: PriceBook) -> tuple[str, ...]:
    found = row.predicted
    return (
        _machine(found),
        figures(found.days),
        f"{figures(found.least_days)} to {figures(found.most_days)}",
        found.limit,
        "-" if row.run_cost is None else money_text(row.run_cost, book.currency),
    )


def _machine(found: Predicted | Unpredicted) -> str:
    name = re.sub(r"^(NVIDIA|AMD) |GeForce |Instinct | Blackwell| Edition$| Generation$| OAM$", "", found.gpu)
    return f"{found.gpus}x {name}"


def _with_batch(found: Predicted) -> str:
    return f"{_machine(found)} ({found.micro_batch} x {found.accumulation})"

"""`bench predict`: days and dollars of machines that are not here, with an error bar."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.base.gpu_catalogue import GpuModel, gpu_models
from bench.base.gpu_spec import load_gpu_spec
from bench.base.strict_json import pretty_json
from bench.cli.combinations import refuse_two_formats, refuse_without_plots
from bench.cli.machines import machine_named
from bench.cli.stdio import show
from bench.planning.manifest import Manifest, load_manifest
from bench.planning.prediction.interruptions import Interruptions, interrupted
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.price_file import load_prices
from bench.report.compare.priced_predictions import PricedPrediction, priced
from bench.report.compare.prices import RentKind
from bench.report.text.prediction_table import explained, prediction_csv, prediction_text
from bench.training.models.dry_build import rehearse

if TYPE_CHECKING:
    from bench.report.compare.comparison import Comparison

ALL = "all"
ALL_COUNTS = (1, 8)  # GPUs of each kind that "all" stands for


@dataclass(frozen=True, slots=True)
class PredictArguments:
    manifest: Path
    gpus: str  # h200,8xh100,all
    prices: Path | None = None
    rent: RentKind = "on-demand"
    budget: float | None = None  # US dollars for one run
    deadline_days: float | None = None
    specs: Sequence[Path] = ()  # files that describe cards
    interrupted_every: float | None = None  # seconds; None: never
    restart: float = 600.0
    save_every: float = 1800.0
    node_overhead: float | None = None
    gco2_per_kwh: float | None = None
    own: bool = False  # costs of machines that one owns, in place of rents
    explain: bool = False
    html: Path | None = None
    plots: Path | None = None
    measured: Sequence[Path] = ()  # bundles, and folders of them, that the plots and the page show too
    png: bool = False
    format: Literal["table", "csv"] | None = None
    as_json: bool = False

    @property
    def interruptions(self) -> Interruptions | None:
        every = self.interrupted_every
        return None if every is None else Interruptions(every, self.restart, self.save_every)

    @property
    def energy(self) -> EnergyFactors:
        return EnergyFactors(self.node_overhead, self.gco2_per_kwh)

    @property
    def output(self) -> Literal["table", "json", "csv"]:
        return "json" if self.as_json else self.format or "table"


def predict(request: PredictArguments) -> int:
    _check(request)
    manifest = load_manifest(request.manifest)
    book = load_prices(request.prices).renting(request.rent)
    predicted, without = _predictions(manifest, request)
    energy = request.energy
    rows = [row for row in (priced(found, book, energy) for found in predicted) if _wanted(row, request)]
    _show(manifest, rows, without, book.currency, request)
    measured = _measured(request)
    if request.html is not None:
        from bench.report.markup import write_page
        from bench.report.pages.prediction_page import prediction_page

        names = [model.name for model in manifest.models]
        write_page(request.html, prediction_page(names, rows, without, book.currency, measured, energy))
        print(f"report {request.html}", file=sys.stderr)
    if request.plots is not None:
        from bench.report.plots.plot_files import write_plots
        from bench.report.plots.predictions import prediction_plots

        plots = prediction_plots(rows, book.currency, measured)
        written = write_plots(request.plots, plots, png=request.png)
        print(f"plots  {len(written)} files in {request.plots}", file=sys.stderr)
    return 0 if rows else 1


def _check(request: PredictArguments) -> None:
    refuse_two_formats(request.as_json, request.format)
    refuse_without_plots(request.plots, "--png", request.png)
    if request.html is None:
        refuse_without_plots(request.plots, "--measured", request.measured)


def _predictions(manifest: Manifest, request: PredictArguments) -> tuple[list[Predicted], list[Unpredicted]]:
    """Predict every model on every machine that was asked for, beside interruptions."""
    described = [load_gpu_spec(path) for path in request.specs]
    machines = dict.fromkeys(_machines(request.gpus, described))
    counted = rehearse(manifest.models, str(request.manifest)).counted
    predictor = Predictor(manifest.models, counted, shipped_fit(), manifest.memory_cap_bytes)
    predicted: list[Predicted] = []
    without: list[Unpredicted] = []
    for found in (one for gpu, count in machines for one in predictor.predict(gpu, count)):
        if isinstance(found, Unpredicted):
            without.append(found)
            continue
        lasting = interrupted(found, request.interruptions) if request.interruptions else found
        if math.isfinite(lasting.days):
            predicted.append(lasting)
        else:
            reason = "between two interruptions it hardly ever reaches a checkpoint"
            without.append(Unpredicted(found.model, found.gpu, found.gpus, reason))
    return predicted, without


def _show(
    manifest: Manifest,
    rows: Sequence[PricedPrediction],
    without: Sequence[Unpredicted],
    currency: str,
    request: PredictArguments,
) -> None:
    match request.output:
        case "json":
            document = {
                "schema": "bench/prediction/v1",
                "manifest": manifest.digest,
                "currency": currency,
                "energy": asdict(request.energy),
                "predicted": [asdict(row) for row in rows],
                "unpredicted": [asdict(one) for one in without],
            }
            sys.stdout.write(pretty_json(document).decode())
        case "csv":
            sys.stdout.write(prediction_csv(rows, currency))
        case "table":
            names = [model.name for model in manifest.models]
            told = request.energy.texts
            show("\n".join(prediction_text(names, rows, without, currency, own=request.own, energy=told)))
            if request.explain:
                show("\n\n".join("\n".join(explained(row, currency)) for row in rows))


def _measured(request: PredictArguments) -> Comparison | None:
    """Compare the bundles that are shown beside predictions; None without any."""
    if not request.measured:
        return None
    from bench.cli.compare import CompareArguments, collect  # loads every report

    return collect(CompareArguments(tuple(request.measured), prices=request.prices, rent=request.rent))


def _machines(text: str, described: Sequence[GpuModel]) -> Iterator[tuple[GpuModel, int]]:
    for word in text.split(","):
        if word == ALL:
            every = (*described, *gpu_models())
            yield from ((gpu, count) for gpu in every for count in ALL_COUNTS)
        else:
            yield machine_named(word, "--gpu", described, "--gpu-spec FILE describes a card")


def _wanted(row: PricedPrediction, request: PredictArguments) -> bool:
    in_time = request.deadline_days is None or row.predicted.most_days <= request.deadline_days
    cost = row.cost(own=request.own)
    return in_time and (request.budget is None or (cost is not None and cost.amount <= request.budget))

"""`bench predict`: days and dollars of machines that are not here, with an error bar."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.base.names import RentKind
from bench.base.terminal import print_json
from bench.cli.combinations import refuse_two_formats, refuse_without_plots
from bench.cli.stdio import show
from bench.library.predict import Predictions
from bench.library.predict import predict as predict_machines
from bench.records.text import count_text
from bench.report.text.prediction_table import explained, prediction_csv, prediction_text

if TYPE_CHECKING:
    from bench.report.compare.comparison import Comparison
    from bench.training.models import Model


@dataclass(frozen=True, slots=True)
class PredictArguments:
    """The options of `bench predict`; without a budget or deadline no machine is left out."""

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
    def output(self) -> Literal["table", "json", "csv"]:
        """The format to print; `_check` has refused --json beside another --format."""
        return "json" if self.as_json else self.format or "table"


def predict(request: PredictArguments) -> int:
    """Print the predictions; return 1 if no machine that was asked for is within the limits."""
    _check(request)
    found = predict_machines(
        request.manifest,
        gpu=request.gpus,
        prices=request.prices,
        rent=request.rent,
        budget_usd=request.budget,
        deadline=request.deadline_days,
        gpu_spec=request.specs,
        interrupted_every=request.interrupted_every,
        restart=request.restart,
        save_every=request.save_every,
        node_overhead=request.node_overhead,
        gco2_per_kwh=request.gco2_per_kwh,
        own=request.own,
    )
    _show(found, request)
    measured = _measured(found.trained, request)
    rows, currency = found.predicted, found.currency
    if request.html is not None:
        from bench.report.markup import write_page
        from bench.report.pages.prediction_page import prediction_page

        page = prediction_page(
            found.models, rows, found.unpredicted, currency, measured, found.energy, found.outside,
            own=request.own,
        )  # fmt: skip
        write_page(request.html, page)
        print(f"report {request.html}", file=sys.stderr)
    if request.plots is not None:
        from bench.report.plots.plot_files import write_plots
        from bench.report.plots.predictions import prediction_plots

        written = write_plots(request.plots, prediction_plots(rows, currency, measured), png=request.png)
        print(f"plots  {count_text(len(written), 'file')} in {request.plots}", file=sys.stderr)
    return 0 if rows else 1


def _check(request: PredictArguments) -> None:
    refuse_two_formats(request.format, as_json=request.as_json)
    refuse_without_plots(request.plots, "--png", request.png)
    if request.html is None:
        refuse_without_plots(request.plots, "--measured", request.measured)


def _show(found: Predictions, request: PredictArguments) -> None:
    rows, currency = found.predicted, found.currency
    match request.output:
        case "json":
            print_json(found.to_json())
        case "csv":
            sys.stdout.write(prediction_csv(rows, currency))
        case "table":
            text = prediction_text(
                found.models, rows, found.unpredicted, currency,
                outside=found.outside, own=request.own, energy=found.energy.texts,
            )  # fmt: skip
            show("\n".join(text))
            if request.explain:
                show("\n\n".join("\n".join(explained(row, currency)) for row in rows))


def _measured(models: Sequence[Model], request: PredictArguments) -> Comparison | None:
    """Compare the bundles of --measured, which are shown together with predictions; None without any.

    Only figures of the recipes that are predicted are kept: those of another recipe have other days.
    """
    if not request.measured:
        return None
    from bench.cli.compare import CompareArguments, collect  # loads every report
    from bench.report.compare.compared_rows import recipe_conditions
    from bench.report.plots.predictions import not_drawn
    from bench.report.read_bundles import own_process

    own_process()
    found = collect(CompareArguments(tuple(request.measured), prices=request.prices, rent=request.rent))
    recipes = {model.name: tuple(recipe_conditions(model)) for model in models}
    parts = tuple(part for part in found.parts if recipes.get(part.model) == part.recipe)
    measured = {part.model for part in found.parts}
    for model in [model for model in recipes if model not in {part.model for part in parts}]:
        why = "its bundles measured another recipe, and are not shown"
        why = why if model in measured else "no bundle of --measured has it"
        print(f"{model}: {why}", file=sys.stderr)
    shown = replace(found, parts=parts)
    for line in not_drawn(recipes, shown):
        print(line, file=sys.stderr)
    return shown

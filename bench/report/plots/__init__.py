"""The plots of a comparison.

Each kind of plot is a module of this folder with `plots(part, comparison)`, and its name is listed below.
`overall` is the one over all models.
Pure, except `plot_files`, which writes files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.svg import Plot

MACHINE_PLOTS = ("money", "scaling")  # of a model's machines
SETTING_PLOTS = ("feasibility", "speedups", "settings")  # of the settings that were tried
MODEL_PLOTS = MACHINE_PLOTS + SETTING_PLOTS


def model_plots(
    part: ModelPart, comparison: Comparison, names: Sequence[str] = MODEL_PLOTS
) -> Iterator[Plot]:
    """Yield every plot of these kinds that this model has the figures for."""
    for name in names:
        yield from import_module(f"bench.report.plots.{name}").plots(part, comparison)


def all_plots(comparison: Comparison) -> Iterator[Plot]:
    """Yield the plot over all models, the plots of every model, then time line and telemetry of every run."""
    from bench.report.plots import telemetry, timeline
    from bench.report.plots.overall import overall_plot

    if (overall := overall_plot(comparison)) is not None:
        yield overall
    for part in comparison.parts:
        yield from model_plots(part, comparison)
    yield from timeline.plots(comparison)
    yield from telemetry.plots(comparison)

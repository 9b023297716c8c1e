"""The plots of a comparison.

Each kind of plot is a module of this folder with `plots(part, comparison)`; `MODEL_PLOTS` lists it.
Pure, except `plot_files`, which writes files.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.svg import Plot

MODEL_PLOTS = ("money", "scaling", "feasibility", "speedups", "settings")


def model_plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    """Yield every plot that this model has the figures for."""
    for name in MODEL_PLOTS:
        yield from import_module(f"bench.report.plots.{name}").plots(part, comparison)


def all_plots(comparison: Comparison) -> Iterator[Plot]:
    """Yield the plots of every model, then the telemetry of every run."""
    from bench.report.plots.telemetry import plots

    for part in comparison.parts:
        yield from model_plots(part, comparison)
    yield from plots(comparison)

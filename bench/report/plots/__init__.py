"""The plots of a comparison. A plot is one file here with `plots(part, comparison)`, and its name below."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.plots.svg import Plot

_OF_A_MODEL = ("money", "scaling", "feasibility", "speedups", "settings")


def model_plots(part: ModelPart, comparison: Comparison) -> Iterator[Plot]:
    """Those for which this model has the figures."""
    for name in _OF_A_MODEL:
        yield from import_module(f"bench.report.plots.{name}").plots(part, comparison)


def all_plots(comparison: Comparison) -> Iterator[Plot]:
    from bench.report.plots.telemetry import plots

    for part in comparison.parts:
        yield from model_plots(part, comparison)
    yield from plots(comparison)

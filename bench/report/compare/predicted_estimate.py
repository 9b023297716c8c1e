"""Estimate the days on a machine that was not measured: a measured row times a ratio of predictions. Pure.

An error that both predictions have, such as that of the model, cancels out. The errors between cards and
between numbers of GPUs remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bench.base.errors import BenchError
from bench.base.gpu_catalogue import GpuModel, gpu_named
from bench.planning.prediction.predicted_machines import Predicted, Predictor, seconds_of
from bench.planning.prediction.step_time import StepPart, group_of, shipped_fit
from bench.records.estimate import TO_SIGMA
from bench.records.spread import shipped_spreads
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.extrapolate import Guess
from bench.training.models import Counted, Model, counts_by_formula
from bench.training.models.shipped_counts import shipped_counts


def predicted_estimate(
    gpu: GpuModel, gpus: int, at_peak_days: float, rows: Iterable[RankedRow]
) -> Guess | None:
    """Estimate from the nearest of these rows, which train one recipe; None if none can be predicted."""
    for row in sorted(rows, key=lambda row: _distance(row, gpu, gpus)):
        try:
            estimate = _from_row(row, gpu, gpus, at_peak_days)
        except (ArithmeticError, AttributeError, BenchError, LookupError, TypeError, ValueError):
            continue  # a method of a later version, or a model that this version cannot count
        if estimate is not None:
            return estimate
    return None


def _from_row(row: RankedRow, gpu: GpuModel, gpus: int, at_peak_days: float) -> Guess | None:
    """Estimate from one row; None if the predictor has no figure for its machine or for the other one."""
    known = gpu_named(row.machine.name)
    counts = (counts_by_formula(row.trained) or shipped_counts(row.trained)) if row.trained else None
    if known is None or counts is None or row.trained is None:
        return None
    batch = StepPart(row.best.micro_batch, row.best.accumulation)
    machine = (known, row.machine.devices)
    here = seconds_of(row.trained, counts, row.best.setting, batch, machine, shipped_fit())
    predictor = Predictor([row.trained], {row.trained.name: counts}, shipped_fit())
    (there,) = predictor.predict(gpu, gpus)
    if here is None or not isinstance(there, Predicted):
        return None
    ratio = there.step_seconds / here
    days, error = row.days.value * ratio, _error(row, row.trained, counts, there)
    return Guess(
        gpu=gpu.name,
        gpus=gpus,
        at_peak_days=at_peak_days,
        days=days,
        low_days=max(days / (1 + error), at_peak_days),
        high_days=days * (1 + error),
        held_out=0,
        basis=f"{row.machine.label} times the predicted ratio {ratio:.3g}, "
        f"with {there.label} at micro-batch {there.micro_batch}",
        predicted=True,
    )


def _distance(row: RankedRow, gpu: GpuModel, gpus: int) -> tuple[bool, float, float]:
    """Order rows by kind of GPU, then by their numbers; of equal ones the fastest comes first."""
    return row.machine.name != gpu.name, abs(math.log(row.machine.devices / gpus)), row.days.value


def _error(row: RankedRow, model: Model, counts: Counted, there: Predicted) -> float:
    """Return the largest error that applies between the two machines."""
    fit, errors = shipped_fit(), [shipped_spreads().another_machine / TO_SIGMA]
    if row.machine.name != there.gpu:
        errors.append(fit.card_error)
    if row.machine.devices != there.gpus:
        errors.append(fit.gpus_error)
    if row.best.setting != there.setting:
        errors.append(fit.errors[group_of(model, counts)])
    return max(errors)

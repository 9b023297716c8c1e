"""The setting that a machine would train a model with, and how long that would take. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.base.gpu_catalogue import GpuModel
from bench.planning.manifest import Manifest
from bench.planning.plan import SettingPlan, make_plan
from bench.planning.prediction.card_rates import GPUS_A_NODE, rates_of
from bench.planning.prediction.step_time import (
    Fit,
    StepPart,
    group_of,
    step_time,
    why_unpredicted,
    work_of,
)
from bench.training.methods import Target
from bench.training.models import Counted, Model, counts_by_formula

SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Predicted:
    """The fastest setting of a model on a machine that is not here."""

    model: str
    gpu: str
    gpus: int
    label: str
    micro_batch: int
    accumulation: int
    step_seconds: float
    days: float
    least_days: float  # nine of ten predictions are between these two
    most_days: float
    memory_bytes: int | None
    limit: str  # what takes most of the time
    kwh: float | None  # at the power limit of the GPUs
    source: str  # of the rate of products


@dataclass(frozen=True, slots=True)
class Unpredicted:
    model: str
    gpu: str
    gpus: int
    reason: str


def predict_machine(
    manifest: Manifest, gpu: GpuModel, gpus: int, counted: Mapping[str, Counted], fit: Fit
) -> list[Predicted | Unpredicted]:
    """Predict every model of a manifest on so many GPUs of a kind, in whichever setting is the fastest."""
    divided = [
        replace(one, methods="guided", micro_batch=None)
        for one in manifest.requests
        if one.model.recipe.batch_size % gpus == 0
    ]
    nodes = math.ceil(gpus / GPUS_A_NODE)
    memory = int(gpu.memory_gib * 2**30)
    capability = gpu.compute_capability
    target = Target("cuda", gpus, memory, gpu.name, capability, nodes=nodes, elsewhere=True)
    plan = make_plan(replace(manifest, requests=tuple(divided)), target, counted) if divided else None
    found: list[Predicted | Unpredicted] = []
    for model in manifest.models:
        counts = counted.get(model.name) or counts_by_formula(model)
        if model.recipe.batch_size % gpus:
            reason = f"a batch of {model.recipe.batch_size} does not divide among {gpus} GPUs"
            found.append(Unpredicted(model.name, gpu.name, gpus, reason))
            continue
        cells = [cell for cell in plan.cells if cell.model.name == model.name] if plan else []
        found.append(_predict(model, cells, counts, gpu, gpus, fit))
    return found


def _predict(
    model: Model, cells: list[SettingPlan], counts: Counted | None, gpu: GpuModel, gpus: int, fit: Fit
) -> Predicted | Unpredicted:
    if counts is None:
        return Unpredicted(
            model.name, gpu.name, gpus, "its operations are counted with torch and transformers"
        )
    if not cells:
        return Unpredicted(model.name, gpu.name, gpus, "no setting fits into its memory")
    reasons, times, rates = [], [], rates_of(gpu)
    for cell in cells:
        if reason := why_unpredicted(model, cell.setting):
            reasons.append(reason)
            continue
        if (work := work_of(model, cell.setting, gpus, counts)) is None:
            continue
        for trial in cell.trials:
            if cell.needs[trial.micro_batch] is not None:
                batch = StepPart(trial.micro_batch, trial.accumulation)
                time = step_time(work, batch, gpus, rates, model.recipe.precision, fit.multipliers)
                times.append((time, cell, trial))
    if not times:
        reason = next(iter(reasons), "the memory that its blocks read and write is not counted")
        return Unpredicted(model.name, gpu.name, gpus, reason)
    time, cell, trial = min(times, key=lambda each: each[0].seconds)
    days = time.seconds * model.recipe.steps / SECONDS_A_DAY
    error = fit.error(group_of(model, counts), gpu.name, gpus)
    return Predicted(
        model=model.name,
        gpu=gpu.name,
        gpus=gpus,
        label=cell.label,
        micro_batch=trial.micro_batch,
        accumulation=trial.accumulation,
        step_seconds=time.seconds,
        days=days,
        least_days=days / (1 + error),
        most_days=days * (1 + error),
        memory_bytes=cell.needs[trial.micro_batch],
        limit=time.limit,
        kwh=gpu.watts * gpus * days * 24 / 1000 if gpu.watts else None,
        source=rates.product_source,
    )

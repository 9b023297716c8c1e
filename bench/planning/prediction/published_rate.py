"""Predict bench's throughput on the machine and at the setting of a published throughput. Pure."""

from __future__ import annotations

from bench.base.gpu_catalogue import gpu_named
from bench.planning.prediction.predicted_machines import seconds_of, target_of_kind
from bench.planning.prediction.step_time import Fit, StepPart
from bench.planning.published import PublishedRow, manifest_of, setting_of
from bench.training.models import Counted


def predicted_per_gpu(row: PublishedRow, counts: Counted, fit: Fit) -> float | None:
    """Return units a second and GPU; None if the card, the micro-batch or the time is not known."""
    gpu = gpu_named(row.card)
    if gpu is None or row.micro_batch is None:
        return None
    (model,) = manifest_of(row).models
    recipe, setting = model.recipe, setting_of(row, target_of_kind(gpu, row.gpus))
    part = StepPart(row.micro_batch, recipe.batch_size // (row.gpus * row.micro_batch))
    seconds = seconds_of(model, counts, setting, part, (gpu, row.gpus), fit)
    return None if seconds is None else recipe.batch_size * recipe.units_per_sample / seconds / row.gpus

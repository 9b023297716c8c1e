"""Predict bench's throughput on the machine and at the setting of a published throughput. Pure."""

from __future__ import annotations

from bench.base.gpu_catalogue import GPUS_A_NODE, gpu_named
from bench.planning.prediction.card_rates import rates_of
from bench.planning.prediction.step_time import Fit, StepPart, step_time, why_unpredicted, work_of
from bench.planning.published import PublishedRow, manifest_of, setting_of
from bench.training.methods import Target
from bench.training.models import Counted


def predicted_per_gpu(row: PublishedRow, counts: Counted, fit: Fit) -> float | None:
    """Return units a second and GPU; None if the card, the micro-batch or the time is not known."""
    gpu = gpu_named(row.card)
    if gpu is None or row.micro_batch is None:
        return None
    (model,) = manifest_of(row).models
    nodes = -(-row.gpus // GPUS_A_NODE)
    memory = int(gpu.memory_gib * 2**30)
    target = Target("cuda", row.gpus, memory, gpu.name, gpu.compute_capability, nodes=nodes, elsewhere=True)
    setting = setting_of(row, target)
    work = None if why_unpredicted(model, setting) else work_of(model, setting, row.gpus, counts)
    if work is None:
        return None
    recipe = model.recipe
    part = StepPart(row.micro_batch, recipe.batch_size // (row.gpus * row.micro_batch))
    time = step_time(work, part, row.gpus, rates_of(gpu), recipe.precision, fit.multipliers)
    return recipe.batch_size * recipe.units_per_sample / time.seconds / row.gpus

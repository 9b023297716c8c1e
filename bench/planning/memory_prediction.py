"""Predict the peak memory of a step: weights, gradients, optimizer moments, and activations.

Pure arithmetic on shapes. docs/accuracy.md compares predictions with measurements.
"""

from __future__ import annotations

from bench.planning.recorded_memory import reserved_memory
from bench.training.methods.chunked_loss import logits_bytes
from bench.training.models import Counted, Model, Parts, Precision, family_of
from bench.training.models.footprint import activation_bytes
from bench.training.setting import Setting, in_group

FP32, HALF = 4, 2  # bytes a parameter
# DeepSpeed's defaults, as numbers of parameters: the size of a gradient bucket, and the most gathered weights
# that it keeps.
BUCKET = 500_000_000
GATHERED = 1_000_000_000
PROCESS = 3_000_000_000  # bytes of the host's memory that Python, torch and CUDA take in each process
# Bytes of the host's memory that offloading takes for each parameter. Weights, gradients and two moments are
# 16; the rest is what DeepSpeed allocates while it sets up, a pass's gradients beside their sums under FSDP2,
# and pinned memory, which is allocated in powers of two. Measured: 21 to 24 (ZeRO-1
# and -2), 33 (ZeRO-3), 22 to 24 (FSDP2); tests/planning/test_memory.py compares these numbers with bundles.
OFFLOADED = {"zero-1": 22, "zero-2": 22, "zero-3": 34, "fsdp-2": 24, "fsdp-3": 24}


def predict_bytes(
    model: Model, setting: Setting, micro_batch: int, gpus: int, counts: Counted | None = None
) -> int | None:
    """Predict the peak bytes of one device by the family's formulas, else by counts; None without both."""
    family = family_of(model)
    try:
        parts, activations = family.parameters(model), family.activation_bytes(model, setting)
    except LookupError:
        return predict_counted_bytes(model, setting, micro_batch, gpus, counts) if counts else None
    return _peak_bytes(model, setting, micro_batch, gpus, parts, activations)


def predict_counted_bytes(
    model: Model, setting: Setting, micro_batch: int, gpus: int, counts: Counted
) -> int | None:
    """Predict the peak bytes of one device by counts; None if this way of computing was not counted."""
    footprint = counts.footprint(model, setting)
    if footprint is None:
        return None
    activations = activation_bytes(footprint, model, setting)
    recipe, parts = model.recipe, counts.parts
    beside = recipe.aim.bytes_of_a_step(recipe, recipe.batch_size, gpus, footprint.logits)
    reserved = reserved_memory(footprint, model, parts, setting, micro_batch, moment_bytes(model, parts))
    if reserved and not {"checkpointing", "chunked-loss"} & {*setting}:
        return beside + reserved.outside + reserved.pool
    in_use = _peak_bytes(model, setting, micro_batch, gpus, parts, activations)
    return beside + in_use + (reserved.lost if reserved else 0)


def _peak_bytes(
    model: Model, setting: Setting, micro_batch: int, gpus: int, parts: Parts, activations: tuple[int, int]
) -> int:
    """Add the bytes of weights, gradients and optimizer to those of activations, at their larger peak."""
    at_loss, in_blocks = activations
    precision = model.recipe.precision
    in_backward, after = gradients_of_a_pass(setting, precision, parts.total, gpus)
    at_loss = at_loss * micro_batch + logits_bytes(model, setting, micro_batch)
    peak = max(at_loss, in_blocks * micro_batch + in_backward, after)
    moments = moment_bytes(model, parts)
    return state_bytes(parts, setting, gpus, moments, half=precision != "fp32") + peak


def moment_bytes(model: Model, parts: Parts) -> int:
    """Return the bytes of the optimizer's moments of all parameters, before they are divided among GPUs."""
    return model.recipe.optimizer.moment_bytes(parts.matrices, parts.total - parts.matrices)


def host_bytes(parameters: int, setting: Setting, gpus: int, nodes: int = 1, frozen_bytes: int = 0) -> int:
    """Return the bytes of one node's own memory that offloading takes: its share of all offloaded data.

    Frozen weights are offloaded where all weights are: with zero-3 and FSDP2.
    """
    sharding = in_group(setting, "sharding")
    if sharding is None or "offload" not in setting:
        return 0
    frozen = 0 if sharding in ("zero-1", "zero-2") else frozen_bytes
    return (OFFLOADED[sharding] * parameters + frozen + gpus * PROCESS) // nodes


def state_bytes(parts: Parts, setting: Setting, gpus: int, moments: int, *, half: bool) -> int:
    """Return a device's peak bytes that no micro-batch changes; `moments`: bytes of them on all GPUs."""
    sharding, offload = in_group(setting, "sharding"), "offload" in setting
    match sharding:
        case None:
            # fp32 weights, gradients and the moments; a pass under autocast adds half copies of weights.
            # DDP keeps a second copy of the gradients, which several passes add up; half-weights does not.
            sent = FP32 * (gpus > 1 and "half-weights" not in setting)
            fp32 = parts.total * (FP32 + FP32 + sent) + moments + parts.frozen_bytes
            return fp32 + half * _half_weights_bytes(parts, setting)
        case "fsdp-2" | "fsdp-3":
            too = sharding == "fsdp-3"
            return _fsdp(parts, moments, gpus, half=half, parameters_too=too, offload=offload)
        case _:
            stage = int(sharding.removeprefix("zero-"))
            return _zero(parts, moments, gpus, half=half, stage=stage, offload=offload)


def _half_weights_bytes(parts: Parts, setting: Setting) -> int:
    """Return the bytes of weights in half precision at the peak of a pass, without sharding.

    A block keeps the copies that autocast or the compiler made of its weights for its backward pass. With
    checkpointing it keeps none: they are made again with the block's activations, one block after another.
    """
    if "checkpointing" in setting and "half-weights" not in setting:
        return HALF * (parts.outside + max(parts.blocks, default=0))
    return HALF * parts.total


def gradients_of_a_pass(
    setting: Setting, precision: Precision, parameters: int, gpus: int
) -> tuple[int, int]:
    """Return the bytes that ZeRO-1 and -2 allocate in a backward pass after the loss was freed, and after it.

    ZeRO-2 allocates its gradient bucket with the first gradient. ZeRO-1 in bf16 adds gradients up in fp32
    when a pass is over, so all of them exist at once in half precision, if they stay on the GPU; without
    checkpointing, the pass has by then freed more activations than they take. Otherwise ZeRO-1 adds up each
    gradient as soon as it exists. After a step's last pass it allocates its part of the sums again, while all
    sums still exist, and the copy of a bucket that it exchanges in half precision.
    """
    if "zero-2" in setting:
        return BUCKET * (FP32 if precision == "fp32" else HALF), 0
    if "zero-1" not in setting or precision == "fp32":
        return 0, 0
    if precision == "bf16" and "offload" not in setting:
        return HALF * parameters * ("checkpointing" in setting), 0
    return 0, FP32 * parameters // gpus + HALF * min(BUCKET, parameters)


def _fsdp(parts: Parts, moments: int, gpus: int, *, half: bool, parameters_too: bool, offload: bool) -> int:
    """Return the bytes under FSDP2: shards, gathered weights, and the largest gradients being reduced."""
    bytes_gathered = HALF if half else FP32
    largest = max(parts.blocks, default=0)
    # The current block and the prefetched one; parameters outside of blocks stay gathered for the whole pass.
    gathered = parts.outside + 2 * largest if parameters_too else parts.total
    in_reduction = max(largest, parts.outside) * bytes_gathered
    shards = 0 if offload else (parts.total * (FP32 + FP32) + moments + parts.frozen_bytes) // gpus
    frozen = _frozen_in_use(parts, parameters_too=parameters_too)
    return shards + gathered * bytes_gathered + in_reduction + frozen


def _frozen_in_use(parts: Parts, *, parameters_too: bool) -> int:
    """Return the bytes of frozen weights that are gathered at once, as of trained ones."""
    if not parameters_too:
        return parts.frozen_bytes
    return parts.frozen_outside_bytes + 2 * max(parts.frozen_blocks_bytes, default=0)


def _zero(parts: Parts, moments: int, gpus: int, *, half: bool, stage: int, offload: bool) -> int:
    """Return the bytes under DeepSpeed: weights in the computing precision, sums of gradients, and a bucket.

    The fp32 copy of the weights and the moments are divided among devices. Each gradient in the computing
    precision is freed as soon as it is reduced.
    """
    computed = HALF if half else FP32
    total = parts.total
    weights = total * computed
    if stage == 3:
        in_use = parts.outside + 2 * max(parts.blocks, default=0)
        weights = max(in_use, min(GATHERED, total)) * computed
        weights += 0 if offload else (total * computed + parts.frozen_bytes) // gpus
    weights += _frozen_in_use(parts, parameters_too=stage == 3)
    gradients = total * FP32 // (1 if stage == 1 else gpus)
    if offload and (stage == 3 or (stage == 2 and not half)):
        gradients = 0  # added up on the host
    optimizer = 0 if offload else (total * FP32 + moments) // gpus
    bucket = {1: FP32, 2: 0, 3: computed}[stage] * BUCKET  # stage 2: see gradients_of_a_pass
    return weights + gradients + optimizer + bucket

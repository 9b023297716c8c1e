"""Memory at the height of a step, predicted: weights, gradients, moments, and what a pass keeps.

Pure arithmetic on shapes. docs/accuracy.md holds it against what was measured.
"""

from __future__ import annotations

from bench.methods import Setting, in_group
from bench.models import Model, Parts
from bench.models.inline import family_of, parameters_of

FP32, HALF, MOMENTS = 4, 2, 8  # bytes a parameter
# DeepSpeed sends gradients and gathers weights in buckets of so many parameters, two in flight.
BUCKET = 500_000_000
IN_FLIGHT = 2
PROCESS = 3_000_000_000  # of the host's memory: what Python, torch and CUDA take
# And what offloading takes there, for each parameter. Weights, gradients and two moments are 16; the rest
# is what DeepSpeed makes while it sets up, and pinned memory, which comes in powers of two.
# Measured: 21, 33 and 19 (tests/test_memory.py holds them against the bundles).
OFFLOADED = {"zero-1": 22, "zero-2": 22, "zero-3": 34, "fsdp-2": 20, "fsdp-3": 20}


def predict_bytes(model: Model, setting: Setting, micro_batch: int, gpus: int) -> int | None:
    """None where only the built module can tell."""
    family = family_of(model)
    try:
        parts = family.parameters(model)
        activations = family.activation_bytes(model, setting)
    except LookupError:
        return None
    half = model.recipe.precision != "fp32"
    return state_bytes(parts, setting, gpus, half) + activations * micro_batch


def host_bytes(model: Model, setting: Setting, gpus: int) -> int:
    """What offloading takes of the host's memory; of a model that is counted when it runs, nobody knows."""
    sharding = in_group(setting, "sharding")
    if sharding is None or "offload" not in setting:
        return 0
    return OFFLOADED[sharding] * (parameters_of(model) or 0) + gpus * PROCESS


def state_bytes(parts: Parts, setting: Setting, gpus: int, half: bool) -> int:
    """What is there whatever the micro-batch, at its most."""
    sharding, offload = in_group(setting, "sharding"), "offload" in setting
    match sharding:
        case None:
            # fp32 weights, gradients and two moments; autocast keeps a half copy of the weights in a pass.
            return parts.total * (FP32 + FP32 + MOMENTS + HALF * half)
        case "fsdp-2" | "fsdp-3":
            return _fsdp(parts, gpus, half, parameters_too=sharding == "fsdp-3", offload=offload)
        case _:
            return _zero(parts, gpus, half, stage=int(sharding.removeprefix("zero-")), offload=offload)


def _fsdp(parts: Parts, gpus: int, half: bool, *, parameters_too: bool, offload: bool) -> int:
    """Shards; what is gathered; the largest part's gradients on their way."""
    gathered = HALF if half else FP32
    largest = max(parts.blocks, default=0)
    # The block at work and the one fetched ahead; what lies outside of the blocks stays for the whole pass.
    together = parts.outside + 2 * largest if parameters_too else parts.total
    on_their_way = max(largest, parts.outside) * gathered
    shards = 0 if offload else parts.total * (FP32 + FP32 + MOMENTS) // gpus
    return shards + together * gathered + on_their_way


def _zero(parts: Parts, gpus: int, half: bool, *, stage: int, offload: bool) -> int:
    """Weights as computed with, an fp32 copy and moments divided, gradients whole or divided, buckets.

    Gradients leave in buckets when most activations are gone, so that these do not add to the height; those
    on their way to the host, or of gathered weights, are there all the time.
    """
    computed = HALF if half else FP32
    total = parts.total
    sent = FP32 if stage == 1 else computed  # stage 1 adds up first
    bucket = IN_FLIGHT * min(BUCKET, total) * sent if offload or stage == 3 else 0
    weights = total * computed
    # Stage 1 adds up whole gradients in fp32, beside those in half precision.
    gradients = total * (computed + FP32 * half) if stage == 1 else total * FP32 // gpus
    optimizer = total * (FP32 + MOMENTS) // gpus
    if stage == 3:
        weights = (parts.outside + 2 * max(parts.blocks, default=0)) * computed
        weights += 0 if offload else total * computed // gpus
    if offload:
        gradients = total * FP32 if stage == 1 else 0
        optimizer = 0
    return weights + gradients + optimizer + bucket

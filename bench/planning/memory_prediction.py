"""Memory at the height of a step, predicted: weights, gradients, moments, and what a pass keeps.

Pure arithmetic on shapes. docs/accuracy.md holds it against what was measured.
"""

from __future__ import annotations

from bench.training.models import Model, Parts, family_of
from bench.training.setting import Setting, in_group

FP32, HALF, MOMENTS = 4, 2, 8  # bytes a parameter
# Parameters, whatever a model has, by DeepSpeed's defaults: what a bucket of gradients has room for, and how
# many weights that were gathered are kept.
BUCKET = 500_000_000
GATHERED = 1_000_000_000
PROCESS = 3_000_000_000  # of the host's memory: what Python, torch and CUDA take
# And what offloading takes there, for each parameter. Weights, gradients and two moments are 16; the rest
# is what DeepSpeed makes while it sets up, a pass's gradients beside their sums under FSDP2, and pinned
# memory, which comes in powers of two. Measured: 21 to 24, 33, and 22 to 24 (tests/test_memory.py holds them
# against the bundles).
OFFLOADED = {"zero-1": 22, "zero-2": 22, "zero-3": 34, "fsdp-2": 24, "fsdp-3": 24}


def predict_bytes(model: Model, setting: Setting, micro_batch: int, gpus: int) -> int | None:
    """None where only the built module can tell."""
    family = family_of(model)
    try:
        parts = family.parameters(model)
        at_loss, in_blocks = family.activation_bytes(model, setting)
    except LookupError:
        return None
    half = model.recipe.precision != "fp32"
    late = _late(setting, half, parts.total)
    activations = max(at_loss * micro_batch, in_blocks * micro_batch + late)
    return state_bytes(parts, setting, gpus, half) + activations


def host_bytes(parameters: int, setting: Setting, gpus: int, nodes: int = 1) -> int:
    """What offloading takes of a node's memory.

    What is offloaded is divided among all devices, so a node has its own devices' share of it.
    """
    sharding = in_group(setting, "sharding")
    if sharding is None or "offload" not in setting:
        return 0
    return (OFFLOADED[sharding] * parameters + gpus * PROCESS) // nodes


def state_bytes(parts: Parts, setting: Setting, gpus: int, half: bool) -> int:
    """What is there whatever the micro-batch, at its most."""
    sharding, offload = in_group(setting, "sharding"), "offload" in setting
    match sharding:
        case None:
            # fp32 weights, gradients and two moments; autocast keeps a half copy of the weights in a pass.
            # DDP has its own copy of gradients that several passes add up; half-weights averages them itself.
            sent = FP32 * (gpus > 1 and "half-weights" not in setting)
            return parts.total * (FP32 + FP32 + MOMENTS + HALF * half + sent)
        case "fsdp-2" | "fsdp-3":
            return _fsdp(parts, gpus, half, parameters_too=sharding == "fsdp-3", offload=offload)
        case _:
            return _zero(parts, gpus, half, stage=int(sharding.removeprefix("zero-")), offload=offload)


def _late(setting: Setting, half: bool, parameters: int) -> int:
    """What comes once the loss is gone.

    Stage 2 of ZeRO makes room for gradients with the first of them. Stage 1 adds them up in fp32 once a pass
    is over, so that all of them come together in half precision; without checkpointing more than they take,
    of what the pass kept, is gone by then.
    """
    if "zero-2" in setting:
        return BUCKET * (HALF if half else FP32)
    return HALF * parameters if half and {"zero-1", "checkpointing"} <= {*setting} else 0


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
    """Weights as computed with, sums of gradients, an fp32 copy and moments divided, a bucket.

    Gradients as computed leave as soon as they are there.
    """
    computed = HALF if half else FP32
    total = parts.total
    weights = total * computed
    if stage == 3:
        at_work = parts.outside + 2 * max(parts.blocks, default=0)
        weights = max(at_work, min(GATHERED, total)) * computed
        weights += 0 if offload else total * computed // gpus
    gradients = total * FP32 // (1 if stage == 1 else gpus)
    if offload and (stage == 3 or (stage == 2 and not half)):
        gradients = 0  # added up on the host
    optimizer = 0 if offload else total * (FP32 + MOMENTS) // gpus
    bucket = {1: FP32, 2: 0, 3: computed}[stage] * BUCKET  # stage 2 makes its own `_late`
    return weights + gradients + optimizer + bucket

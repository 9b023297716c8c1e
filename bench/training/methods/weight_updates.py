"""How weights are held and updated: in half precision with an fp32 copy, and by a fused optimizer.

bench/runner/trial/strategies.py reads the names of these methods.
"""

from __future__ import annotations

from bench.training.methods.method import Method, Target
from bench.training.models import Model, families

# Families whose authors kept half-precision weights. Others, Mamba among them, kept fp32 weights and computed
# under autocast.
SOURCES = {
    "gpt_neox": "Pythia: fp16 under DeepSpeed's optimizer (github.com/EleutherAI/pythia, models/*/*.yml)",
    "roberta": "fairseq's --fp16: half weights, an fp32 copy in its FP16Optimizer",
}


def _refuse_half_weights(model: Model, _target: Target) -> str | None:
    if model.recipe.precision == "fp32":
        return f"{model.name} trains in fp32"
    if model.family in families() and model.family not in SOURCES:
        return f"{model.name} was trained with fp32 weights under autocast"
    return None


METHODS = (
    Method(
        name="half-weights",
        summary="weights in half precision, updated through an fp32 copy; gradients added up in fp32",
        excludes={"sharding": "half-weights and {other} both say how weights are held: choose one"},
        chooses_kernels=False,
        not_exported_to={
            "accelerate": "it keeps weights in fp32: half-precision weights need bench's loop",
            "deepspeed": "without sharding it sums gradients of half-precision weights in half precision",
        },
        refuse=_refuse_half_weights,
    ),
    Method(
        name="fused-optimizer",  # one kernel for weights and moments; the default makes many passes
        summary="Adam's update in one kernel",
        free_lunch=True,
        chooses_kernels=False,
        configured_by=("trainer",),
    ),
)

"""How weights are held and updated: in half precision with an fp32 copy, and by a fused optimizer.

bench/runner/trial/strategies.py reads the names of these methods.
"""

from __future__ import annotations

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of


def _refuse_half_weights(model: Model, _target: Target) -> str | None:
    if model.recipe.precision == "fp32":
        return f"{model.name} trains in fp32"
    return family_of(model).keeps_fp32_weights


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
        no_adapters="half-weights copies weights that are trained; frozen ones have half precision already",
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

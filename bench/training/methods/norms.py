"""The two norms of a GPT-NeoX block in one Triton kernel: both normalise the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of

if TYPE_CHECKING:
    from torch import nn


MAX_WIDTH = 4096  # elements of a row, which one program holds in registers; wider rows were not measured


def _refuse(model: Model, target: Target) -> str | None:
    family = family_of(model)
    if not {"attention_norm", "mlp_norm"} <= family.seams.keys():
        return f"{model.name} has no two norms side by side"
    if target.device == "cpu":
        return "its kernels are for NVIDIA GPUs"
    a = family.complete(model)
    if not a["use_parallel_residual"]:
        return f"the second norm of {model.name} waits for its attention (use_parallel_residual)"
    if a["hidden_dropout"]:
        return f"{model.name} drops units behind its norms (hidden_dropout)"
    if a["hidden_size"] > MAX_WIDTH:
        return f"its kernels take {MAX_WIDTH:,} numbers a row at most; {model.name} has {a['hidden_size']:,}"
    return None


def _apply(model: Model, _whole: nn.Module, blocks: list[nn.Module]) -> None:
    from bench.training.triton.norms import forward_of  # imports Triton, which needs a GPU

    for block in blocks:
        block.forward = forward_of(block, family_of(model).seams)


METHODS = (
    Method(
        name="norms",
        summary="both norms of a block in one Triton kernel, which reads their input once in each pass",
        free_lunch=True,
        compiled_on_first_use=True,
        # Under autocast norms compute in fp32, and the layers after them read a half-precision copy.
        requires={"half-weights": "norms is for blocks in half precision throughout: add half-weights"},
        chooses_kernels=False,  # comes and goes with half-weights, whose gain includes it
        refuse=_refuse,
        apply=_apply,
    ),
)

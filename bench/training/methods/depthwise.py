"""Depthwise convolutions in Triton kernels, whose filter gradients run at the memory's rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Model

if TYPE_CHECKING:
    from torch import nn


def _refuse(model: Model, target: Target) -> str | None:
    if model.family != "convnext":
        return f"{model.name} has no depthwise convolutions of seven by seven"
    if target.device == "cpu":
        return "its kernels are for NVIDIA GPUs"
    if model.recipe.precision != "fp32":
        return "its kernels keep fp32; this recipe computes in half precision"
    return None


def _apply(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.triton.depthwise import fits, forward_of  # imports Triton, which needs a GPU

    for module in whole.modules():
        if fits(module):
            module.forward = forward_of(module)


METHODS = (
    Method(
        name="depthwise",
        summary="depthwise convolutions in Triton, channels innermost, added up in fp32",
        free_lunch=True,
        compiled_on_first_use=True,
        refuse=_refuse,
        apply=_apply,
    ),
)

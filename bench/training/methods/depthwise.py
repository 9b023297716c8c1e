"""Depthwise convolutions by kernels of our own: the gradient of their filters at the memory's rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Depthwise(Method):
    name: str = "depthwise"
    summary: str = "depthwise convolutions in Triton, channels innermost, added up in fp32"
    free_lunch: ClassVar[bool] = True
    built_there: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.family != "convnext":
            return f"{model.name} has no depthwise convolutions of seven by seven"
        if target.device == "cpu":
            return "its kernels are for NVIDIA GPUs"
        if model.recipe.precision != "fp32":
            return "its kernels keep fp32; this recipe computes in half precision"
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        from bench.training.triton.depthwise import fits, forward_of  # brings Triton, which needs a GPU

        for module in whole.modules():
            if fits(module):
                module.forward = forward_of(module)


METHODS = (Depthwise(),)

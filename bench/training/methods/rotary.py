"""Rotary positions by a kernel of our own: queries, keys and values taken apart and turned in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Rotary(Method):
    name: str = "rotary"
    summary: str = "queries and keys turned to their positions in Triton, where attention reads them"
    free_lunch: ClassVar[bool] = True
    built_there: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.family != "gpt_neox":
            return f"{model.name} has no rotary positions of GPT-NeoX's form"
        if target.device == "cpu":
            return "its kernels are for NVIDIA GPUs"
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        from bench.training.triton.rotary import forward_of  # brings Triton, which needs a GPU

        for block in blocks:
            block.attention.forward = forward_of(block.attention)


METHODS = (Rotary(),)

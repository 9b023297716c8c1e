"""Attention in fp32 on tensor cores: PyTorch's other kernels leave them idle where nothing is halved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target, older_than
from bench.training.models import Model
from bench.training.models.footprint import complete
from bench.training.models.own_models import family_of

if TYPE_CHECKING:
    from torch import nn

LEAST_WIDTH = 16  # of a head: what tensor cores multiply at once


@dataclass(frozen=True, slots=True)
class Flex(Method):
    name: str = "flex-attention"
    summary: str = "attention by FlexAttention's Triton kernels, in TF32 where the recipe is fp32"
    free_lunch: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.family != "vit":
            return "known to pay for ViT alone: attention without a mask, in fp32"
        if model.recipe.precision != "fp32":
            return "in half precision the usual kernels use tensor cores"
        if model.architecture.get("attention_probs_dropout_prob"):
            return "FlexAttention has no dropout"
        a = complete(model, family_of(model).defaults())
        width = a["hidden_size"] // a["num_attention_heads"]
        if width < LEAST_WIDTH:
            return f"FlexAttention takes heads of {LEAST_WIDTH} and more, these have {width}"
        if target.device == "cpu":
            return "FlexAttention trains on GPUs alone"
        if older_than(target, 8.0):
            return f"it pays by TF32, which needs compute capability 8.0, not {target.compute_capability}"
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        from bench.training.models.footprint import flex_attention

        whole.model.set_attn_implementation(flex_attention())


METHODS = (Flex(),)

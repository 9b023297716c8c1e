"""GELU by kernels of our own, with the bias of the layer before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model
from bench.training.models.footprint import complete
from bench.training.models.own_models import family_of

if TYPE_CHECKING:
    from torch import nn

# Of each family: what the activation is called, and the layer before it in the same module.
WHERE = {
    "gpt_neox": ("act", "dense_h_to_4h"),
    "roberta": ("intermediate_act_fn", "dense"),
    "vit": ("activation_fn", "fc1"),
    "convnext": ("act", "pwconv1"),
}


@dataclass(frozen=True, slots=True)
class Gelu(Method):
    name: str = "gelu"
    summary: str = "GELU and the bias before it in Triton, each number read and written once"
    free_lunch: ClassVar[bool] = True
    built_there: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.family not in WHERE:
            return f"where {model.name} has GELU after a layer with a bias is not known here"
        if target.device == "cpu":
            return "its kernels are for NVIDIA GPUs"
        activation = complete(model, family_of(model).defaults())["hidden_act"]
        if activation != "gelu":
            return f'its kernels are for "gelu"; {model.name} has "{activation}"'
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        from bench.training.triton.gelu import take_over  # brings Triton, which needs a GPU

        activation, layer = WHERE[model.family]
        for module in whole.modules():
            if hasattr(module, activation) and hasattr(module, layer):
                take_over(getattr(module, layer), getattr(module, activation))


METHODS = (Gelu(),)

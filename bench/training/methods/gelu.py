"""GELU in Triton kernels of this project, together with the bias of the layer before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of

if TYPE_CHECKING:
    from torch import nn


def _refuse(model: Model, target: Target) -> str | None:
    family = family_of(model)
    if not {"gelu", "before_gelu"} <= family.seams.keys():
        return f"bench does not know which module of {model.name} is GELU after a layer with a bias"
    if target.device == "cpu":
        return "its kernels are for NVIDIA GPUs"
    activation = family.complete(model)["hidden_act"]
    if activation != "gelu":
        return f'its kernels are for "gelu"; {model.name} has "{activation}"'
    return None


def _apply(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.triton.gelu import take_over  # imports Triton, which needs a GPU

    seams = family_of(model).seams
    activation, layer = seams["gelu"], seams["before_gelu"]
    for module in whole.modules():
        if hasattr(module, activation) and hasattr(module, layer):
            take_over(getattr(module, layer), getattr(module, activation))


METHODS = (
    Method(
        name="gelu",
        summary="GELU and the bias before it in Triton, each number read and written once",
        free_lunch=True,
        compiled_on_first_use=True,
        refuse=_refuse,
        apply=_apply,
    ),
)

"""Rotary positions in one Triton kernel: splits the projection into query, key, value and rotates them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Model, family_of

if TYPE_CHECKING:
    from torch import nn


def _refuse(model: Model, target: Target) -> str | None:
    if "rotary_attention" not in family_of(model).seams:
        return f"{model.name} has no rotary positions of GPT-NeoX's form"
    if target.device == "cpu":
        return "its kernels are for NVIDIA GPUs"
    return None


def _apply(model: Model, _whole: nn.Module, blocks: list[nn.Module]) -> None:
    from bench.training.triton.rotary import forward_of  # imports Triton, which needs a GPU

    name = family_of(model).seams["rotary_attention"]
    for block in blocks:
        attention = getattr(block, name)
        attention.forward = forward_of(attention)


METHODS = (
    Method(
        name="rotary",
        summary="queries and keys rotated in Triton, in the layout that attention reads",
        free_lunch=True,
        compiled_on_first_use=True,
        requires={"kernels": "rotary hands over to the attention of kernels: add kernels"},
        refuse=_refuse,
        apply=_apply,
    ),
)

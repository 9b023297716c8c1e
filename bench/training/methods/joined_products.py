"""Layers that read the same tensor as one matrix product: query, key and value, or gate and up.

Weights keep their names, their fp32 copies and their moments: bench/runner/trial/half_weights_strategy.py
places their half-precision copies side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, looking_for
from bench.training.models import Model
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import nn


def _refuse(model: Model, _target: Target) -> str | None:
    if model.recipe.aim.data != ("tokens",):
        return "bench looks for layers that read the same tensor in language models only"
    return transformers_source.why_not_joined(model.family)


def _find(model: Model, whole: nn.Module) -> None:
    from bench.training.models.siblings import siblings_of

    with looking_for("joined-products", model):
        whole.siblings = siblings_of(whole.model, model)


METHODS = (
    Method(
        name="joined-products",
        summary="layers that read the same tensor as one product: query, key and value; gate and up",
        not_exported_to={
            "standalone": (
                "joined-products is code of bench: without it query, key and value are products of "
                "their own, and a step takes longer than measured"
            ),
        },
        only_faster=True,
        requires={"half-weights": "joined-products adds gradients in the product: add half-weights"},
        no_adapters="joined-products needs half-weights, which adapters do not have",
        refuse=_refuse,
        find=_find,
    ),
)

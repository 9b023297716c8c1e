"""The head of a language model with rows added, where the number of words has rows of odd length.

Matrix kernels are fast if rows are a multiple of eight elements. A compiler that pads such a product copies
the logits to cut them to length, and their gradient to pad it; and whether it pads is decided by timing, so
that speed and memory of a pass differ between machines. Here the matrix gets rows of zeros, and everything
after the product reads a view of the logits without the columns that they give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, unfit
from bench.training.models import Model, words_of
from bench.training.models.footprint import ROW_MULTIPLE
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import Tensor, nn

PADDED_TO = 64  # rows: a multiple of ROW_MULTIPLE that fits the tiles of matrix kernels
MIN_WORDS = 8192  # fewer words are no large share of a pass


def _refuse(model: Model, _target: Target) -> str | None:
    words = words_of(model)
    if words == 0:
        return "a model without words has no logits to pad"
    if words % ROW_MULTIPLE == 0:
        return f"logits of {words:,} words need no padding"
    if words < MIN_WORDS:
        return f"padding pays from {MIN_WORDS:,} words on: {words:,} are a small part of a pass"
    return transformers_source.why_no_linear_head(model.family)


def _apply(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from torch import nn
    from torch.nn.functional import linear, pad

    layer = whole.model.get_output_embeddings()
    if type(layer) is not nn.Linear or len(layer.weight) != words_of(model):
        raise unfit("padded-head", model, "the logits are no product of one linear layer")
    words = layer.out_features
    added = -words % PADDED_TO

    def padded(entry: Tensor) -> Tensor:
        bias = None if layer.bias is None else pad(layer.bias, (0, added))
        logits: Tensor = linear(entry, pad(layer.weight, (0, 0, 0, added)), bias)
        return logits[..., :words]

    layer.forward = padded


METHODS = (
    Method(
        name="padded-head",
        summary="rows of zeros in the matrix of a head whose number of words is no multiple of eight",
        not_exported_to={
            "standalone": (
                "padded-head is code of bench: without it the compiler pads or not, and a step may take "
                "longer and more memory than measured"
            ),
        },
        only_faster=True,
        free_lunch=True,
        requires={"compilation": "padded-head pays only where the copies are fused: add compile-blocks"},
        excludes={"chunked-loss": "{other} computes its gradient from whole rows"},
        no_adapters="padded-head was not measured with adapters",
        refuse=_refuse,
        apply=_apply,
    ),
)

"""Linear layers in fp32 whose gradients are products with transposed copies, for tensor cores of Hopper.

In TF32 these read both factors of a product along its sums. A weight's gradient sums over rows, and both
factors lie across them in memory; the gradient of an input sums over a weight's rows. Such products take up
to half as long again (docs/methods.md). Imports torch at module level.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.models.footprint import ROW_MULTIPLE

MIN_ROWS = 4096  # of an input: the product of fewer gains less than the copy of the weight costs
MIN_WIDTH = 1024  # of the layer's wider side: narrower ones gain less than a copy of the other side costs
LINE = 32  # elements of a line of the memory's cache


def linear_layers_of(module: nn.Module) -> list[nn.Linear]:
    """Return the layers in fp32 that `take_over` can take. Subclasses may compute something else."""
    return [
        part
        for part in module.modules()
        if type(part) is nn.Linear
        and part.weight.dtype == torch.float32
        and not any(width % ROW_MULTIPLE for width in part.weight.shape)
    ]


def take_over(layer: nn.Linear) -> None:
    """Let the layer compute its gradients with transposed copies if its input has enough rows."""
    if "forward" in vars(layer):  # replaced by a method that uses `layer.product` (biased_gelu.py)
        layer.product = _product
    else:
        layer.forward = lambda input: _product(input, layer.weight, layer.bias)


def _product(entry: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not entry.requires_grad or entry.numel() < MIN_ROWS * entry.size(-1):
        return F.linear(entry, weight, bias)
    out: Tensor = _Product.apply(entry, weight, bias)
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entry: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(entry, weight)
        ctx.biased = bias is not None
        return F.linear(entry, weight, bias)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        entry, weight = ctx.saved_tensors
        changes = change.flatten(0, -2)
        of_entry = (changes @ transposed(weight, changes).t()).view_as(entry)
        of_bias = changes.sum(0) if ctx.biased else None
        return of_entry, weight_gradient(changes, entry.flatten(0, -2)), of_bias


def weight_gradient(changes: Tensor, entries: Tensor) -> Tensor:
    """Return the product of `changes`, transposed, and `entries`; the narrower one is copied if that pays."""
    out, width = changes.size(1), entries.size(1)
    if max(out, width) < MIN_WIDTH:
        return changes.t() @ entries
    if width <= out:
        return changes.t() @ transposed(entries, changes).t()
    return transposed(changes, changes) @ entries


# An operator, so that the compiler keeps the layout of the copy.
@torch.library.custom_op("bench::transposed", mutates_args=())
def transposed(matrix: Tensor, change: Tensor) -> Tensor:  # noqa: ARG001
    """Return a transposed copy of a matrix.

    The gradient `change` is an argument so that the compiler makes the copy in the backward pass. Otherwise
    it makes the copy in the forward pass, and keeps it beside the matrix.
    """
    out = room_for_transposed(matrix)
    if not matrix.is_cuda:
        return out.copy_(matrix.t())
    from bench.training.triton.transpose import write_transposed  # imports Triton, which needs a GPU

    write_transposed(matrix.contiguous(), out)
    return out


@transposed.register_fake
def room_for_transposed(matrix: Tensor, _change: Tensor | None = None) -> Tensor:
    """Return memory for a copy, in which an odd number of lines lies between the starts of rows.

    Rows that start at multiples of a large power of two share a few places in the GPU's caches. With 401,408
    rows, torch's own copy, which starts its rows so, takes nine times as long (docs/methods.md).
    """
    rows, columns = matrix.shape
    stride = LINE * (math.ceil(rows / LINE) | 1)
    return matrix.new_empty_strided((columns, rows), (stride, 1))

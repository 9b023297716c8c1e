"""Products that add a weight's gradient to its fp32 sums themselves, so that it is never written apart.

In half precision it would be written by the product and read again to be added: of pythia-6.9b 13.7 GB a
pass, of one sample as of many.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.vendor import torch_inside

EVEN = 64  # elements: what lengths of rows divide by in all that was measured


def adds_up(layer: nn.Module) -> bool:
    """Others have something of their own between weight and product, or rows of odd length.

    Those the compiler pads to be fast. With roberta-large's head of 50,265 words a pass of 256 samples ended
    in an illegal memory access (torch 2.11 on an H200), and does not without.
    """
    return type(layer) is nn.Linear and not any(length % EVEN for length in layer.weight.shape)


def add_up_in_products(layer: nn.Linear, sums: Tensor) -> None:
    """The backward pass adds the gradient of the layer's weight to `sums`; autograd is given none."""
    # `data`, since sums are views of one buffer: else each seems changed when another one is.
    layer.register_buffer("sums", sums.data, persistent=False)

    def product(entry: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # Of an entry that asks for no gradient a compiler drops the operator: none of its results is used.
        if not entry.requires_grad or entry.dim() < 2:
            return F.linear(entry, weight, bias)
        out: Tensor = _product(entry, weight, bias, layer.sums)
        return out

    if "forward" in vars(layer):  # a method's, which asks for its product (bench.training.triton.gelu)
        layer.product = product
    else:
        layer.forward = lambda input: product(input, layer.weight, layer.bias)


# Operators of their own, so that torch.compile takes them as they are.


@torch.library.custom_op("bench::product", mutates_args=())
def _product(entry: Tensor, weight: Tensor, bias: Tensor | None, sums: Tensor) -> Tensor:  # noqa: ARG001
    # `data`, since it may be a view, and autograd lets nobody write to a view that an operator made.
    return F.linear(entry, weight, bias).data


@_product.register_fake
def _(entry: Tensor, weight: Tensor, _bias: Tensor | None, _sums: Tensor) -> Tensor:
    return entry.new_empty(*entry.shape[:-1], weight.shape[0])


# It changes `sums`, which nothing else in a compiled graph reads: were that said, they would be copied.
@torch.library.custom_op("bench::product_gradient", mutates_args=())
def _product_gradient(change: Tensor, entry: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    changes, entries = change.flatten(0, -2), entry.flatten(0, -2)
    total = sums.data  # unseen by autograd, which keeps them for a layer's other uses, too
    if total.is_cuda:
        torch_inside.add_half_product(total, changes.T, entries)
    else:  # PyTorch has a product of halves in fp32 for GPUs alone
        total += changes.T @ entries
    return change @ weight


@_product_gradient.register_fake
def _(change: Tensor, _entry: Tensor, weight: Tensor, _sums: Tensor) -> Tensor:
    return change.new_empty(*change.shape[:-1], weight.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor], output: Tensor) -> None:  # noqa: ARG001
    entry, weight, bias, sums = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(entry, weight, sums)


def _backward(ctx: Any, change: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
    entry, weight, sums = ctx.saved_tensors
    # Not in the operator: what made `change` may add it up on the way.
    of_bias = change.flatten(0, -2).sum(0) if ctx.biased else None
    return _product_gradient(change, entry, weight, sums), None, of_bias, None


torch.library.register_autograd("bench::product", _backward, setup_context=_keep)

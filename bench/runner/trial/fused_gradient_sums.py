"""Matrix products that add a weight's gradient directly to its fp32 sums.

Otherwise the product writes the gradient in half precision, and the addition reads it again: 13.7 GB a pass
of pythia-6.9b, however many samples it has. Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.vendor import torch_inside

ROW_MULTIPLE = 64  # elements; in all layers that were measured, rows have a multiple of it


def adds_up(layer: nn.Module) -> bool:
    """Whether the layer's product can add the gradient: a plain linear layer with rows of even length.

    The compiler pads rows of odd length. With roberta-large's head of 50,265 words, a pass of 256 samples
    then ended in an illegal memory access (torch 2.11 on an H200). Subclasses of nn.Linear may change the
    weight before the product.
    """
    return type(layer) is nn.Linear and not any(length % ROW_MULTIPLE for length in layer.weight.shape)


def add_up_in_products(layer: nn.Linear, sums: Tensor) -> None:
    """Let the backward pass add the gradient of the layer's weight to `sums`; autograd gets no gradient."""
    # `data`, because sums are views of one buffer: otherwise autograd sees a change of one in all others.
    layer.register_buffer("sums", sums.data, persistent=False)

    def product(entry: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # For an input without a gradient the compiler would drop the operator, whose results nothing uses.
        if not entry.requires_grad or entry.dim() < 2:
            return F.linear(entry, weight, bias)
        out: Tensor = _product(entry, weight, bias, layer.sums)
        return out

    if "forward" in vars(layer):  # replaced by a method that uses `layer.product` (biased_gelu.py)
        layer.product = product
    else:
        layer.forward = lambda input: product(input, layer.weight, layer.bias)


def join_products(layers: Sequence[nn.Linear], sums: Tensor, start: int) -> None:
    """Let the first of several layers that read the same tensor compute the product of all.

    Their weights become rows of one matrix. Their gradients are added up in `sums`, side by side from `start`
    on. The model calls the layers in this order.
    """
    rows, width = [len(layer.weight) for layer in layers], layers[0].weight.size(1)
    matrix = torch.cat([layer.weight.data for layer in layers])
    total = sums[start : start + matrix.numel()].view(sum(rows), width)
    for layer, part in zip(layers, matrix.split(rows), strict=True):
        layer.weight.data = part
    waiting: list[tuple[Tensor, Tensor]] = []  # entry and result of the layers that were not called yet
    first, *others = layers
    first.register_buffer("matrix", matrix, persistent=False)
    first.register_buffer("sums", total.data, persistent=False)

    def compute_all(entry: Tensor) -> Tensor:
        if entry.requires_grad:
            found = _product(entry, first.matrix, None, first.sums)
        else:  # for an input without a gradient the compiler would drop the operator
            found = F.linear(entry, torch.cat([layer.weight for layer in layers]))
        own, *more = found.split(rows, -1)
        waiting[:] = [(entry, result) for result in more]
        return own

    def take_over(entry: Tensor) -> Tensor:
        known, result = waiting.pop(0)
        if known is not entry:
            raise RuntimeError("layers that were joined to one product read different tensors")
        return result

    first.forward = compute_all
    for layer in others:
        layer.forward = take_over


# The products are operators, so that torch.compile calls them without tracing into them.


@torch.library.custom_op("bench::product", mutates_args=())
def _product(entry: Tensor, weight: Tensor, bias: Tensor | None, sums: Tensor) -> Tensor:  # noqa: ARG001
    # `data`, because the result may be a view, and autograd forbids writing to a view from an operator.
    return F.linear(entry, weight, bias).data


@_product.register_fake
def _(entry: Tensor, weight: Tensor, _bias: Tensor | None, _sums: Tensor) -> Tensor:
    return entry.new_empty(*entry.shape[:-1], weight.shape[0])


# The operator also changes `sums`, undeclared: nothing else in a compiled graph reads them, and declaring the
# change would make the compiler copy them.
@torch.library.custom_op("bench::product_gradient", mutates_args=())
def _product_gradient(grad_out: Tensor, entry: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    """Add the weight's gradient to `sums`. Returns the gradient of the input."""
    gradients, entries = grad_out.flatten(0, -2), entry.flatten(0, -2)
    total = sums.data  # hidden from autograd, which keeps `sums` for other uses of the layer
    if total.is_cuda:
        torch_inside.add_half_product(total, gradients.T, entries)
    else:  # PyTorch multiplies halves into fp32 on GPUs only
        total += gradients.T @ entries
    return grad_out @ weight


@_product_gradient.register_fake
def _(grad_out: Tensor, _entry: Tensor, weight: Tensor, _sums: Tensor) -> Tensor:
    return grad_out.new_empty(*grad_out.shape[:-1], weight.shape[1])


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor], output: Tensor) -> None:  # noqa: ARG001
    entry, weight, bias, sums = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(entry, weight, sums)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
    entry, weight, sums = ctx.saved_tensors
    # Outside of the operator, so that the compiler can fuse the sum with the code that makes `grad_out`.
    grad_bias = grad_out.flatten(0, -2).sum(0) if ctx.biased else None
    return _product_gradient(grad_out, entry, weight, sums), None, grad_bias, None


torch.library.register_autograd("bench::product", _backward, setup_context=_save_inputs)

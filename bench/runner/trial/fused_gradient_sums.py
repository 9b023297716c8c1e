"""Matrix products and embeddings that add a weight's gradient directly to its fp32 sums.

Otherwise the product writes the gradient in half precision, and the addition reads it again: 13.7 GB a pass
of pythia-6.9b, however many samples it has. An embedding would write gradients of all its rows, most of them
zero. Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.models.fp8 import gradient_in_fp8, linear_in_fp8, multiplies_in_fp8, product_in_fp8
from bench.training.vendor import torch_inside

MIN_ROWS = 4096  # of an embedding; gradients of smaller tables are small
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
    in_fp8 = multiplies_in_fp8(layer)
    plain = linear_in_fp8 if in_fp8 else F.linear

    def product(entry: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not _adds_up_for(entry):
            return plain(entry, weight, bias)
        multiply = linear_in_fp8 if in_fp8 else _product
        out: Tensor = multiply(entry.to(weight.dtype), weight, bias, layer.sums)
        return out

    if "forward" in vars(layer):  # replaced by a method that uses `layer.product` (biased_gelu.py)
        layer.product = product
    else:
        layer.forward = lambda input: product(input, layer.weight, layer.bias)


def _adds_up_for(entry: Tensor) -> bool:
    """Whether a product with this input can add the gradient of its weight.

    For an input without a gradient the compiler would drop the operator, whose results nothing uses.
    """
    return bool(entry.requires_grad) and entry.dim() > 1


def adds_up_rows(layer: nn.Module) -> bool:
    """Whether the embedding can add the gradients of the rows that it looked up: a plain, large one."""
    return (
        type(layer) is nn.Embedding
        and layer.num_embeddings >= MIN_ROWS
        and layer.max_norm is None
        and not layer.scale_grad_by_freq
        and not layer.sparse
    )


def add_up_rows(layer: nn.Embedding, sums: Tensor) -> None:
    """Let the backward pass add the gradients of the embedding's rows to `sums`; autograd gets none."""
    total, padding = sums.data, layer.padding_idx

    def look_up(ids: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # the compiler would drop the backward pass, which returns nothing
            return F.embedding(ids, layer.weight, padding)
        out: Tensor = _Rows.apply(ids, layer.weight, total, padding)
        return out

    layer.forward = look_up


class _Rows(torch.autograd.Function):
    """Rows of a table, whose gradients are added to `sums`, except for the row at `padding`."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, sums: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.sums, ctx.padding = sums, padding
        return F.embedding(ids, weight, padding)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.padding is not None:
            gradients = gradients.masked_fill((ids == ctx.padding).unsqueeze(-1), 0)
        ctx.sums.index_add_(0, ids.flatten(), gradients.flatten(0, -2).float())
        return None, None, None, None


def groups_to_join(groups: Sequence[Sequence[nn.Linear]]) -> list[list[nn.Linear]]:
    """Return of each group the layers whose products can be one, without groups of which one is left or none.

    A layer whose forward pass a method has replaced computes more than a product. The layers of a group
    multiply in one precision: all of them in fp8, or none.
    """
    fitting = [[one for one in group if adds_up(one) and "forward" not in vars(one)] for group in groups]
    return [group for group in fitting if len(group) > 1 and len(set(map(multiplies_in_fp8, group))) == 1]


def join_products(layers: Sequence[nn.Linear], sums: Tensor, start: int) -> None:
    """Let the first of several layers that read the same tensor compute the product of all.

    Their weights become rows of one matrix. Their gradients are added up in `sums`, side by side from `start`
    on. All layers have a bias, or none has one.

    Code may call layers in another order, under a condition, more than once or on other tensors than the
    first one, and may change results in place: a layer that finds no result of its own for the tensor that it
    is given computes its product alone.
    """
    rows, width = [len(layer.weight) for layer in layers], layers[0].weight.size(1)
    matrix = torch.cat([layer.weight.data for layer in layers])
    total = sums[start : start + matrix.numel()].view(sum(rows), width)
    for layer, part, sums_of_part in zip(layers, matrix.split(rows), total.split(rows), strict=True):
        layer.weight.data = part
        add_up_in_products(layer, sums_of_part)
    waiting: dict[int, tuple[Tensor, Tensor]] = {}  # entries and results of the layers still to be called
    first, *others = layers
    joined = _JoinedFp8Product if multiplies_in_fp8(first) else _JoinedProduct
    first.register_buffer("matrix", matrix, persistent=False)
    first.register_buffer("sums_of_all", total.data, persistent=False)
    first_alone: Callable[[Tensor], Tensor] = first.forward

    def compute_all(entry: Tensor) -> Tensor:
        if not _adds_up_for(entry):
            return first_alone(entry)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        own: Tensor
        lowered = entry.to(first.matrix.dtype)
        own, *results = joined.apply(lowered, first.matrix, first.sums_of_all, rows, *biases)
        waiting.update(enumerate((entry, result) for result in results))
        return own

    def taking_over(number: int, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        alone: Callable[[Tensor], Tensor] = layer.forward

        def take_over(entry: Tensor) -> Tensor:
            known, result = waiting.pop(number, (None, entry))
            return result if known is entry else alone(entry)

        return take_over

    first.forward = compute_all
    for number, layer in enumerate(others):
        layer.forward = taking_over(number, layer)


def _in_parts(found: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
    """Split the result of a joined product into those of its layers, which code may change in place."""
    # `data`, because autograd forbids to change one of several views.
    return tuple(part.data for part in found.split(rows, -1))


# The products are operators, so that torch.compile calls them without tracing into them.


class _JoinedProduct(torch.autograd.Function):
    """A product with a matrix whose rows belong to several layers; its result in parts, one for each layer.

    Its backward pass takes the gradients of the parts one by one: in one tensor they would have to be
    copied, which took more time than the joined product of the backward pass gained (docs/methods.md).
    """

    @staticmethod
    def forward(
        ctx: Any, entry: Tensor, matrix: Tensor, sums: Tensor, rows: list[int], *biases: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(entry, matrix, sums)
        ctx.biased = bool(biases)
        return _in_parts(F.linear(entry, matrix, torch.cat(biases) if biases else None), rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        entry, matrix, sums = ctx.saved_tensors
        biases = [gradient.flatten(0, -2).sum(0) for gradient in gradients if ctx.biased]
        return _parts_gradient(list(gradients), entry, matrix, sums), None, None, None, *biases


class _JoinedFp8Product(torch.autograd.Function):
    """A joined product in fp8. Its backward pass is one product, because casting gradients copies them."""

    @staticmethod
    def forward(
        ctx: Any, entry: Tensor, matrix: Tensor, sums: Tensor, rows: list[int], *biases: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(entry, matrix, sums)
        ctx.biased = bool(biases)
        found = product_in_fp8(entry, matrix)
        return _in_parts(found + torch.cat(biases) if biases else found, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        entry, matrix, sums = ctx.saved_tensors
        biases = [gradient.flatten(0, -2).sum(0) for gradient in gradients if ctx.biased]
        return gradient_in_fp8(gradients, entry, matrix, sums), None, None, None, *biases


@torch.library.custom_op("bench::parts_gradient", mutates_args=())
def _parts_gradient(gradients: Sequence[Tensor], entry: Tensor, matrix: Tensor, sums: Tensor) -> Tensor:
    """Add the gradient of each part of the matrix to `sums`. Returns the gradient of the input."""
    entries, rows = entry.flatten(0, -2), [gradient.size(-1) for gradient in gradients]
    out: Tensor | None = None
    for gradient, weight, total in zip(gradients, matrix.split(rows), sums.split(rows), strict=True):
        changes = gradient.flatten(0, -2)
        _add_product(total, changes, entries)
        out = changes @ weight if out is None else out.addmm_(changes, weight)
    assert out is not None
    return out.view_as(entry)


@_parts_gradient.register_fake
def _(gradients: Sequence[Tensor], entry: Tensor, _matrix: Tensor, _sums: Tensor) -> Tensor:
    return gradients[0].new_empty(entry.shape)


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
    _add_product(sums, grad_out.flatten(0, -2), entry.flatten(0, -2))
    return grad_out @ weight


def _add_product(sums: Tensor, gradients: Tensor, entries: Tensor) -> None:
    """Add the product of gradients and entries to `sums`."""
    # `data` hides the change from autograd, which keeps `sums` for other uses of the layer.
    torch_inside.add_half_product(sums.data, gradients.T, entries)


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

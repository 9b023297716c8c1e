"""Attention of all positions to all others in fp32, as an operator of torch with kernels in TF32.

A graph of torch.compile contains the operator as a whole. On a CPU it computes by plain products. Imports
torch at module level.
"""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Return what positions read, in the shape (samples, positions, heads, width).

    The three tensors have the shape (samples, heads, positions, width). Without a scale it is that of torch.
    """
    assert query.shape == key.shape == value.shape
    turned = (each.transpose(1, 2) for each in (query, key, value))
    result: Tensor = full_attention(*turned, query.size(-1) ** -0.5 if scale is None else scale)[0]
    return result


@torch.library.custom_op("bench::full_attention", mutates_args=())
def full_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return what positions read, and the logarithms of the sums of their weights, to base two.

    The tensors have the shape (samples, positions, heads, width), the sums (samples, heads, positions).
    """
    if not query.is_cuda:
        scores = torch.einsum("sqhw,skhw->shqk", query, key) * scale
        read = torch.einsum("shqk,skhw->sqhw", scores.softmax(-1), value)
        return read.contiguous(), scores.logsumexp(-1) / log(2)
    from bench.training.triton.attention import write_attention  # imports Triton, which needs a GPU

    out, sums = _room_for_results(query, key, value, scale)
    write_attention(*_with_equal_strides(query, key, value), scale, out, sums)
    return out, sums


@torch.library.custom_op("bench::full_attention_gradients", mutates_args=())
def _gradients(
    change: Tensor, along: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients; `along` is the product of each position's change and its result."""
    if not query.is_cuda:
        weights = (torch.einsum("sqhw,skhw->shqk", query, key) * scale / log(2) - sums[..., None]).exp2()
        scores = weights * (torch.einsum("sqhw,skhw->shqk", change, value) - along[..., None]) * scale
        of_query = torch.einsum("shqk,skhw->sqhw", scores, key)
        of_key = torch.einsum("shqk,sqhw->skhw", scores, query)
        of_value = torch.einsum("shqk,sqhw->skhw", weights, change)
        return of_query.contiguous(), of_key.contiguous(), of_value.contiguous()
    from bench.training.triton.attention import write_gradients  # imports Triton, which needs a GPU

    found: tuple[Tensor, Tensor, Tensor] = _room_for_gradients(change, along, query, key, value, scale, sums)
    tensors = _with_equal_strides(query, key, value)
    write_gradients(change.contiguous(), along.contiguous(), *tensors, scale, sums, *found)
    return found


def _with_equal_strides(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three tensors, copied only if their strides differ or their rows are not contiguous."""
    if query.stride() == key.stride() == value.stride() and query.stride(-1) == 1:
        return query, key, value
    return query.contiguous(), key.contiguous(), value.contiguous()


@full_attention.register_fake
def _room_for_results(query: Tensor, _key: Tensor, _value: Tensor, _scale: float) -> tuple[Tensor, Tensor]:
    samples, positions, heads, _width = query.shape
    return query.new_empty(query.shape), query.new_empty(samples, heads, positions)


@_gradients.register_fake
def _room_for_gradients(
    _change: Tensor, _along: Tensor, query: Tensor, key: Tensor, value: Tensor, _scale: float, _sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, change: Tensor, _of_sums: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
    query, key, value, out, sums = ctx.saved_tensors
    along = (change * out).sum(-1).transpose(1, 2)
    return *_gradients(change, along, query, key, value, ctx.scale, sums), None


full_attention.register_autograd(_backward, setup_context=_save)

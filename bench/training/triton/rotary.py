"""Rotary positions of packed queries and keys in Triton: each number is read and written once.

The projection returns query, key and value side by side, head by head. Compiled from transformers' code, the
backward pass through slices and concatenations runs at a quarter of the memory's rate, and its results do not
have the memory layout that attention reads (docs/methods.md). These kernels keep the projection's layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # of one program; a row is one head of one position


# These functions are registered as operators, so that torch.compile does not trace into them.


@torch.library.custom_op("bench::rotary", mutates_args=())
def rotated(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split [samples, positions, heads, 3 x width] into query, key and value; rotate the first two."""
    packed = packed.contiguous()
    width = packed.shape[-1] // 3
    query, key, value = (packed.new_empty(*packed.shape[:-1], width) for _ in range(3))
    _launch(packed.split(width, -1), (query, key, value), cos, sin, backward=False)
    return query, key, value


@torch.library.custom_op("bench::rotary_gradient", mutates_args=())
def _rotated_gradient(
    grad_query: Tensor, grad_key: Tensor, grad_value: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Rotate the gradients of query and key back, and pack all three side by side."""
    width = grad_query.shape[-1]
    packed = grad_query.new_empty(*grad_query.shape[:-1], 3 * width)
    gradients = (grad_query.contiguous(), grad_key.contiguous(), grad_value.contiguous())
    _launch(gradients, packed.split(width, -1), cos, sin, backward=True)
    return packed


def _launch(sources: Any, targets: Any, cos: Tensor, sin: Tensor, *, backward: bool) -> None:
    """Run the kernel on query, key and value, or on their gradients."""
    samples, positions, heads, width = sources[0].shape
    strides = (width, 3 * width) if backward else (3 * width, width)
    cos, sin = cos.contiguous(), sin.contiguous()
    rotated = cos.shape[-1]
    rows = samples * positions * heads
    tables = cos.numel() // rotated  # tables of positions: one for all samples, or one for each sample
    sizes = (rows, heads, tables, *strides, width, rotated, triton.next_power_of_2(width), ROWS)
    _rotate_kernel[(triton.cdiv(rows, ROWS),)](*sources, *targets, cos, sin, *sizes, backward)


@rotated.register_fake
def _(packed: Tensor, _cos: Tensor, _sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*packed.shape[:-1], packed.shape[-1] // 3)
    return packed.new_empty(shape), packed.new_empty(shape), packed.new_empty(shape)


@_rotated_gradient.register_fake
def _(grad_query: Tensor, _grad_key: Tensor, _grad_value: Tensor, _cos: Tensor, _sin: Tensor) -> Tensor:
    return grad_query.new_empty(*grad_query.shape[:-1], 3 * grad_query.shape[-1])


def _save_tables(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[1:])


def _backward(
    ctx: Any, grad_query: Tensor, grad_key: Tensor, grad_value: Tensor
) -> tuple[Tensor, None, None]:
    return _rotated_gradient(grad_query, grad_key, grad_value, *ctx.saved_tensors), None, None


torch.library.register_autograd("bench::rotary", _backward, setup_context=_save_tables)


@triton.jit
def _rotate_kernel(
    query,
    key,
    value,
    to_query,
    to_key,
    to_value,
    cos,
    sin,
    rows,
    heads,
    tables,
    stride,
    to_stride,
    width: tl.constexpr,
    rotated: tl.constexpr,
    columns: tl.constexpr,
    rows_each: tl.constexpr,
    backward: tl.constexpr,
):
    """Rotate queries and keys of `rows_each` rows by their positions' angle, or back; copy values.

    Of the `rotated` numbers of a row, each in the first half forms a pair with one in the second half.
    """
    row = tl.program_id(0).to(tl.int64) * rows_each + tl.arange(0, rows_each)[:, None]
    column = tl.arange(0, columns)[None, :]
    inside = (row < rows) & (column < width)
    rotates = inside & (column < rotated)
    first = column < rotated // 2
    partner = tl.where(first, column + rotated // 2, column - rotated // 2)
    place = row // heads % tables * rotated + column
    c = tl.load(cos + place, rotates, 1.0).to(tl.float32)
    s = tl.load(sin + place, rotates, 0.0).to(tl.float32)
    s = tl.where(first != backward, -s, s)
    source, target = row * stride, row * to_stride + column
    q = tl.load(query + source + column, inside, 0.0).to(tl.float32) * c
    q += tl.load(query + source + partner, rotates, 0.0).to(tl.float32) * s
    tl.store(to_query + target, q, inside)
    k = tl.load(key + source + column, inside, 0.0).to(tl.float32) * c
    k += tl.load(key + source + partner, rotates, 0.0).to(tl.float32) * s
    tl.store(to_key + target, k, inside)
    tl.store(to_value + target, tl.load(value + source + column, inside, 0.0), inside)

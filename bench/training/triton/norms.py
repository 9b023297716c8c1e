"""Two norms of a block in Triton: both normalise the same numbers, which each pass reads once.

Compiled from PyTorch, with 2,560 numbers a row, the forward pass runs at 34% of the memory's rate, the
backward pass at 36% (docs/evidence/where-time-goes-h200/pythia-2.8b-rotary.txt). The residual connection
passes through `NormsFunction` as well, so that its gradient is added in the same kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 264  # of the backward kernel: two for each multiprocessor of an H200, each with sums of its own
STAGES = tl.constexpr(3)  # rows that are loaded ahead


class NormsFunction(torch.autograd.Function):
    """Both norms of `hidden`, and `hidden` itself for the residual connection."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight_first: Tensor,
        bias_first: Tensor,
        weight_second: Tensor,
        bias_second: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return both norms and the input again, whose gradient is thereby added in the same kernel."""
        first, second, means, scales = _norms(
            hidden, weight_first, bias_first, weight_second, bias_second, eps
        )
        ctx.save_for_backward(hidden, weight_first, weight_second, means, scales)
        return first, second, hidden.view_as(hidden)

    @staticmethod
    def backward(
        ctx: Any, grad_first: Tensor, grad_second: Tensor, grad_skip: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the four weights; none of `eps`."""
        return *_norms_gradient(grad_first, grad_second, grad_skip, *ctx.saved_tensors), None


@torch.library.custom_op("bench::norms", mutates_args=())
def _norms(
    hidden: Tensor,
    weight_first: Tensor,
    bias_first: Tensor,
    weight_second: Tensor,
    bias_second: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both norms, and the mean and scale of each row for the backward pass."""
    hidden = hidden.contiguous()
    rows, width = hidden.numel() // hidden.shape[-1], hidden.shape[-1]
    first, second = torch.empty_like(hidden), torch.empty_like(hidden)
    means, scales = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(2))
    rows_each = triton.cdiv(rows, 4 * PROGRAMS)
    weights = (weight_first, bias_first, weight_second, bias_second)
    sizes = (rows, width, eps, rows_each, triton.next_power_of_2(width))
    grid = (triton.cdiv(rows, rows_each),)
    _forward_kernel[grid](hidden, *weights, first, second, means, scales, *sizes, num_warps=8)
    return first, second, means, scales


@torch.library.custom_op("bench::norms_gradient", mutates_args=())
def _norms_gradient(
    grad_first: Tensor,
    grad_second: Tensor,
    grad_skip: Tensor,
    hidden: Tensor,
    weight_first: Tensor,
    weight_second: Tensor,
    means: Tensor,
    scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of the input, weights and biases, from the gradients of the three outputs."""
    gradients = (grad_first.contiguous(), grad_second.contiguous(), grad_skip.contiguous())
    hidden = hidden.contiguous()
    rows, width = hidden.numel() // hidden.shape[-1], hidden.shape[-1]
    grad_hidden = torch.empty_like(hidden)
    rows_each = triton.cdiv(rows, PROGRAMS)
    programs = triton.cdiv(rows, rows_each)
    partial_sums = hidden.new_empty(4, programs, width, dtype=torch.float32)
    saved = (hidden, weight_first, weight_second, means, scales)
    sizes = (rows, width, rows_each, triton.next_power_of_2(width))
    _backward_kernel[(programs,)](*gradients, *saved, grad_hidden, *partial_sums, *sizes, num_warps=8)
    sums = partial_sums.sum(1).to(weight_first.dtype)
    return grad_hidden, *(gradient.clone() for gradient in sums)


@_norms.register_fake
def _(hidden: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, second = (torch.empty_like(hidden, memory_format=torch.contiguous_format) for _ in range(2))
    rows = hidden.numel() // hidden.shape[-1]
    means, scales = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return first, second, means, scales


@_norms_gradient.register_fake
def _(
    _grad_first: Tensor,
    _grad_second: Tensor,
    _grad_skip: Tensor,
    hidden: Tensor,
    weight_first: Tensor,
    weight_second: Tensor,
    _means: Tensor,
    _scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    weights = (weight_first, weight_first, weight_second, weight_second)
    return grad_hidden, *(torch.empty_like(weight) for weight in weights)


@triton.jit
def _forward_kernel(
    hidden,
    weight_first,
    bias_first,
    weight_second,
    bias_second,
    out_first,
    out_second,
    means,
    scales,
    rows,
    width,
    eps,
    rows_each,
    columns: tl.constexpr,
):
    """Normalise `rows_each` rows, one after the other."""
    column = tl.arange(0, columns)
    inside = column < width
    w1 = tl.load(weight_first + column, inside, 0.0).to(tl.float32)
    b1 = tl.load(bias_first + column, inside, 0.0).to(tl.float32)
    w2 = tl.load(weight_second + column, inside, 0.0).to(tl.float32)
    b2 = tl.load(bias_second + column, inside, 0.0).to(tl.float32)
    start = tl.program_id(0) * rows_each
    start_wide = start.to(tl.int64)
    for row in tl.range(start, tl.minimum(start + rows_each, rows), num_stages=STAGES):
        place = (start_wide + (row - start)) * width + column
        x = tl.load(hidden + place, inside, 0.0).to(tl.float32)
        mean = tl.sum(x, 0) / width
        x = tl.where(inside, x - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
        x *= scale
        tl.store(out_first + place, x * w1 + b1, inside)
        tl.store(out_second + place, x * w2 + b2, inside)
        tl.store(means + row, mean)
        tl.store(scales + row, scale)


@triton.jit
def _backward_kernel(
    grad_first,
    grad_second,
    grad_skip,
    hidden,
    weight_first,
    weight_second,
    means,
    scales,
    grad_hidden,
    grad_weight_first,
    grad_bias_first,
    grad_weight_second,
    grad_bias_second,
    rows,
    width,
    rows_each,
    columns: tl.constexpr,
):
    """Compute gradients of `rows_each` rows, and their sums, which are parts of the weights' gradients."""
    column = tl.arange(0, columns)
    inside = column < width
    w1 = tl.load(weight_first + column, inside, 0.0).to(tl.float32)
    w2 = tl.load(weight_second + column, inside, 0.0).to(tl.float32)
    dw1, db1 = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    dw2, db2 = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    start = tl.program_id(0) * rows_each
    start_wide = start.to(tl.int64)
    for row in tl.range(start, tl.minimum(start + rows_each, rows), num_stages=STAGES):
        place = (start_wide + (row - start)) * width + column
        dy1 = tl.load(grad_first + place, inside, 0.0).to(tl.float32)
        dy2 = tl.load(grad_second + place, inside, 0.0).to(tl.float32)
        x = tl.load(hidden + place, inside, 0.0).to(tl.float32)
        dskip = tl.load(grad_skip + place, inside, 0.0).to(tl.float32)
        scale = tl.load(scales + row)
        x = tl.where(inside, (x - tl.load(means + row)) * scale, 0.0)
        dw1 += dy1 * x
        db1 += dy1
        dw2 += dy2 * x
        db2 += dy2
        dx = dy1 * w1 + dy2 * w2
        dx -= tl.sum(dx, 0) / width + x * (tl.sum(dx * x, 0) / width)
        tl.store(grad_hidden + place, dx * scale + dskip, inside)
    place = tl.program_id(0) * width + column
    tl.store(grad_weight_first + place, dw1, inside)
    tl.store(grad_bias_first + place, db1, inside)
    tl.store(grad_weight_second + place, dw2, inside)
    tl.store(grad_bias_second + place, db2, inside)

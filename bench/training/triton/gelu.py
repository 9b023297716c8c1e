"""GELU and the bias before it in Triton, forward and backward: each number is read and written once.

Compiled from PyTorch, both passes run at half of the memory's rate: erf takes longer than the memory does,
and the bias's gradient reads again what the backward pass wrote
(docs/evidence/where-time-goes-h200/pythia-2.8b-rotary.txt). These kernels compute erf by Abramowitz and
Stegun's 7.1.26, off by at most 1.5e-7, a thousandth of half precision's resolution.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 512  # of one program
AT_ONCE = 8  # rows that a program computes at once
ROWS = 64  # of one program of the backward kernel, which sums over them

# These functions are registered as operators, so that torch.compile does not trace into them.


@torch.library.custom_op("bench::gelu", mutates_args=())
def gelu(hidden: Tensor, bias: Tensor) -> Tensor:
    """Return GELU of hidden + bias."""
    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    width = hidden.shape[-1]
    rows = hidden.numel() // width
    grid = (triton.cdiv(rows, AT_ONCE), triton.cdiv(width, COLUMNS))
    _forward_kernel[grid](hidden, bias, out, rows, width, AT_ONCE, COLUMNS)
    return out


@torch.library.custom_op("bench::gelu_gradient", mutates_args=())
def _gelu_gradient(grad_out: Tensor, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients of the input and of the bias, from the gradient of the output."""
    grad_out, hidden = grad_out.contiguous(), hidden.contiguous()
    width = hidden.shape[-1]
    rows = hidden.numel() // width
    grad_hidden = torch.empty_like(hidden)
    partial_sums = hidden.new_empty(triton.cdiv(rows, ROWS), width, dtype=torch.float32)
    grid = (len(partial_sums), triton.cdiv(width, COLUMNS))
    sizes = (rows, width, ROWS, AT_ONCE, COLUMNS)
    _backward_kernel[grid](grad_out, hidden, bias, grad_hidden, partial_sums, *sizes)
    return grad_hidden, partial_sums.sum(0).to(bias.dtype)


@gelu.register_fake
def _(hidden: Tensor, _bias: Tensor) -> Tensor:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


@_gelu_gradient.register_fake
def _(_grad_out: Tensor, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format), torch.empty_like(bias)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    grad_hidden, grad_bias = _gelu_gradient(grad_out, *ctx.saved_tensors)
    return grad_hidden, grad_bias


torch.library.register_autograd("bench::gelu", _backward, setup_context=_save_inputs)


# The reciprocal and the power of two use the hardware's own instruction, which flushes numbers below 1e-38 to
# zero: exact treatment would double its time, and such numbers affect no result. Triton's interpreter,
# which needs no GPU, has no such instruction.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _reciprocal(x):
    if INTERPRETED:
        return 1.0 / x
    asm: tl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _power_of_two(x):
    if INTERPRETED:
        return tl.exp2(x)
    asm: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _normal(x):
    """Return the cumulative normal distribution at x, and exp(-x*x/2)."""
    z = tl.abs(x) * 0.7071067811865476
    t = _reciprocal(1.0 + 0.3275911 * z)
    exponential = _power_of_two(z * z * -1.4426950408889634)
    tail = 0.5307027145 * t - 0.7265760135
    tail = tail * t + 0.7107068705
    tail = tail * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * exponential
    return tl.where(x < 0, tail, 1.0 - tail), exponential


@triton.jit
def _forward_kernel(hidden, bias, out, rows, width, at_once: tl.constexpr, columns: tl.constexpr):
    """Compute GELU of `at_once` rows in `columns` columns."""
    row = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)[:, None]
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, column < width, 0.0).to(tl.float32)[None, :]
    place = row * width + column[None, :]
    inside = (row < rows) & (column < width)[None, :]
    x = tl.load(hidden + place, inside, 0.0).to(tl.float32) + b
    cumulative, _exponential = _normal(x)
    tl.store(out + place, x * cumulative, inside)


@triton.jit
def _backward_kernel(
    grad_out,
    hidden,
    bias,
    grad_hidden,
    partial_sums,
    rows,
    width,
    rows_each: tl.constexpr,
    at_once: tl.constexpr,
    columns: tl.constexpr,
):
    """Compute gradients of `rows_each` rows in `columns` columns, and their sum for the bias's gradient."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    in_width = column < width
    b = tl.load(bias + column, in_width, 0.0).to(tl.float32)[None, :]
    total = tl.zeros((at_once, columns), tl.float32)
    for first in range(0, rows_each, at_once):
        row = tl.program_id(0).to(tl.int64) * rows_each + first + tl.arange(0, at_once)[:, None]
        place = row * width + column[None, :]
        inside = (row < rows) & in_width[None, :]
        x = tl.load(hidden + place, inside, 0.0).to(tl.float32) + b
        dy = tl.load(grad_out + place, inside, 0.0).to(tl.float32)
        cumulative, exponential = _normal(x)
        dx = dy * (cumulative + x * exponential * 0.3989422804014327)
        tl.store(grad_hidden + place, dx, inside)
        total += dx
    tl.store(partial_sums + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), in_width)

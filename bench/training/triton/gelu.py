"""GELU and the bias before it in Triton, both ways: each number read and written once.

Compiled from PyTorch, the way there and the way back run at half of the memory's rate, since erf takes
longer than the memory does, and the bias's gradient reads again what the way back wrote
(docs/evidence/where-time-goes-h200/pythia-2.8b-rotary.txt). Here erf is Abramowitz and Stegun's 7.1.26, off
by at most 1.5e-7, a thousandth of what half precision can tell.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

COLUMNS = 512  # of one program
AT_ONCE = 8  # rows
ROWS = 64  # of one program on the way back, whose sums it keeps


def take_over(layer: nn.Linear, activation: nn.Module) -> None:
    """The layer gives GELU of what it gave: within it, sharded or not, its bias is whole."""

    def forward(entry: Tensor) -> Tensor:
        product = getattr(layer, "product", F.linear)  # bench.runner.trial.fused_gradient_sums has its own
        return gelu(product(entry, layer.weight), layer.bias)

    layer.forward = forward
    activation.forward = lambda hidden: hidden


# Operators of their own, so that torch.compile takes them as they are.


@torch.library.custom_op("bench::gelu", mutates_args=())
def gelu(hidden: Tensor, bias: Tensor) -> Tensor:
    """GELU of hidden + bias."""
    hidden = hidden.contiguous()
    out = torch.empty_like(hidden)
    width = hidden.shape[-1]
    rows = hidden.numel() // width
    grid = (triton.cdiv(rows, AT_ONCE), triton.cdiv(width, COLUMNS))
    _there[grid](hidden, bias, out, rows, width, AT_ONCE, COLUMNS)
    return out


@torch.library.custom_op("bench::gelu_gradient", mutates_args=())
def _gelu_gradient(change: Tensor, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    change, hidden = change.contiguous(), hidden.contiguous()
    width = hidden.shape[-1]
    rows = hidden.numel() // width
    out = torch.empty_like(hidden)
    parts = hidden.new_empty(triton.cdiv(rows, ROWS), width, dtype=torch.float32)
    grid = (len(parts), triton.cdiv(width, COLUMNS))
    _back[grid](change, hidden, bias, out, parts, rows, width, ROWS, AT_ONCE, COLUMNS)
    return out, parts.sum(0).to(bias.dtype)


@gelu.register_fake
def _(hidden: Tensor, _bias: Tensor) -> Tensor:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


@_gelu_gradient.register_fake
def _(_change: Tensor, hidden: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, change: Tensor) -> tuple[Tensor, Tensor]:
    hidden, bias = _gelu_gradient(change, *ctx.saved_tensors)
    return hidden, bias


torch.library.register_autograd("bench::gelu", _backward, setup_context=_keep)


# Both by the hardware's own instruction, without the care for numbers below 1e-38 that doubles its time. None
# of them is so small that it counts. Interpreted, without a GPU, there is no such instruction.
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
    """The normal distribution up to x, and exp(-x*x/2)."""
    z = tl.abs(x) * 0.7071067811865476
    t = _reciprocal(1.0 + 0.3275911 * z)
    beyond = _power_of_two(z * z * -1.4426950408889634)
    sums = 0.5307027145 * t - 0.7265760135
    sums = sums * t + 0.7107068705
    sums = sums * t - 0.142248368
    sums = (sums * t + 0.127414796) * t * beyond
    return tl.where(x < 0, sums, 1.0 - sums), beyond


@triton.jit
def _there(hidden, bias, out, rows, width, at_once: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)[:, None]
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, column < width, 0.0).to(tl.float32)[None, :]
    place = row * width + column[None, :]
    inside = (row < rows) & (column < width)[None, :]
    x = tl.load(hidden + place, inside, 0.0).to(tl.float32) + b
    below, _beyond = _normal(x)
    tl.store(out + place, x * below, inside)


@triton.jit
def _back(
    change, hidden, bias, out, parts, rows, width,
    each: tl.constexpr, at_once: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Some rows of some columns, whose sum is a part of the bias's gradient."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    there = column < width
    b = tl.load(bias + column, there, 0.0).to(tl.float32)[None, :]
    total = tl.zeros((at_once, columns), tl.float32)
    for first in range(0, each, at_once):
        row = tl.program_id(0).to(tl.int64) * each + first + tl.arange(0, at_once)[:, None]
        place = row * width + column[None, :]
        inside = (row < rows) & there[None, :]
        x = tl.load(hidden + place, inside, 0.0).to(tl.float32) + b
        dy = tl.load(change + place, inside, 0.0).to(tl.float32)
        below, beyond = _normal(x)
        dx = dy * (below + x * beyond * 0.3989422804014327)
        tl.store(out + place, dx, inside)
        total += dx
    tl.store(parts + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), there)

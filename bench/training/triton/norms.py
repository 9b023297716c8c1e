"""The two norms of a GPT-NeoX block in Triton: both are of the same numbers, which are read once each way.

Compiled from PyTorch, with 2,560 numbers a row, the way there runs at 34% of the memory's rate, the way back
at 36% (docs/evidence/where-time-goes-h200/pythia-2.8b-rotary.txt). What leaves the block beside both norms
goes through here, too, so that its gradient is added where the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 264  # two a multiprocessor of an H200: each keeps sums of its own
STAGES = tl.constexpr(3)  # rows on their way from memory at once


def forward_of(block: nn.Module, seams: Mapping[str, str]) -> Callable[..., Tensor]:
    """The forward function of a GPT-NeoX block with parallel residuals and without dropout.

    `seams` names the block's parts (`Family.seams`).
    """
    first, second = getattr(block, seams["attention_norm"]), getattr(block, seams["mlp_norm"])
    attention, mlp = getattr(block, seams["rotary_attention"]), getattr(block, seams["mlp"])
    assert block.use_parallel_residual and first.eps == second.eps

    def forward(hidden: Tensor, **rest: Any) -> Tensor:
        for_attention, for_mlp, skip = NormsFunction.apply(
            hidden, first.weight, first.bias, second.weight, second.bias, first.eps
        )
        attended, _ = attention(for_attention, **rest)
        return mlp(for_mlp) + attended + skip

    return forward


class NormsFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, weight2: Tensor, bias2: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        one, other, means, scales = _norms(hidden, weight, bias, weight2, bias2, eps)
        ctx.save_for_backward(hidden, weight, weight2, means, scales)
        return one, other, hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor, beside: Tensor) -> tuple[Tensor | None, ...]:
        return *_norms_gradient(one, other, beside, *ctx.saved_tensors), None


@torch.library.custom_op("bench::norms", mutates_args=())
def _norms(
    hidden: Tensor, weight: Tensor, bias: Tensor, weight2: Tensor, bias2: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = hidden.contiguous()
    rows, width = hidden.numel() // hidden.shape[-1], hidden.shape[-1]
    one, other = torch.empty_like(hidden), torch.empty_like(hidden)
    means, scales = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(2))
    each = triton.cdiv(rows, 4 * PROGRAMS)
    _there[(triton.cdiv(rows, each),)](
        hidden, weight, bias, weight2, bias2, one, other, means, scales, rows, width, eps, each,
        triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return one, other, means, scales


@torch.library.custom_op("bench::norms_gradient", mutates_args=())
def _norms_gradient(
    one: Tensor, other: Tensor, beside: Tensor, hidden: Tensor, weight: Tensor, weight2: Tensor,
    means: Tensor, scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From the gradients of all three: of the input, and of both weights and biases."""
    one, other, beside, hidden = (x.contiguous() for x in (one, other, beside, hidden))
    rows, width = hidden.numel() // hidden.shape[-1], hidden.shape[-1]
    out = torch.empty_like(hidden)
    each = triton.cdiv(rows, PROGRAMS)
    programs = triton.cdiv(rows, each)
    parts = hidden.new_empty(4, programs, width, dtype=torch.float32)
    _back[(programs,)](
        one, other, beside, hidden, weight, weight2, means, scales, out, *parts, rows, width, each,
        triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    sums = parts.sum(1).to(weight.dtype)
    return out, *(part.clone() for part in sums)


@_norms.register_fake
def _(
    hidden: Tensor, _w: Tensor, _b: Tensor, _w2: Tensor, _b2: Tensor, _eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one, other = (torch.empty_like(hidden, memory_format=torch.contiguous_format) for _ in range(2))
    rows = hidden.numel() // hidden.shape[-1]
    means, scales = (hidden.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return one, other, means, scales


@_norms_gradient.register_fake
def _(
    _one: Tensor, _other: Tensor, _beside: Tensor, hidden: Tensor, weight: Tensor, weight2: Tensor,
    _means: Tensor, _scales: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    of_weights = (torch.empty_like(x) for x in (weight, weight, weight2, weight2))
    return out, *of_weights


@triton.jit
def _there(
    hidden, weight, bias, weight2, bias2, one, other, means, scales, rows, width, eps, each,
    columns: tl.constexpr,
):  # fmt: skip
    """Some rows."""
    column = tl.arange(0, columns)
    there = column < width
    w = tl.load(weight + column, there, 0.0).to(tl.float32)
    b = tl.load(bias + column, there, 0.0).to(tl.float32)
    w2 = tl.load(weight2 + column, there, 0.0).to(tl.float32)
    b2 = tl.load(bias2 + column, there, 0.0).to(tl.float32)
    first = tl.program_id(0) * each
    start = first.to(tl.int64)
    for row in tl.range(first, tl.minimum(first + each, rows), num_stages=STAGES):
        place = (start + (row - first)) * width + column
        x = tl.load(hidden + place, there, 0.0).to(tl.float32)
        mean = tl.sum(x, 0) / width
        x = tl.where(there, x - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
        x *= scale
        tl.store(one + place, x * w + b, there)
        tl.store(other + place, x * w2 + b2, there)
        tl.store(means + row, mean)
        tl.store(scales + row, scale)


@triton.jit
def _back(
    one, other, beside, hidden, weight, weight2, means, scales, out, of_weight, of_bias, of_weight2, of_bias2,
    rows, width, each, columns: tl.constexpr,
):  # fmt: skip
    """Some rows, whose sums are a part of the gradients of weights and biases."""
    column = tl.arange(0, columns)
    there = column < width
    w = tl.load(weight + column, there, 0.0).to(tl.float32)
    w2 = tl.load(weight2 + column, there, 0.0).to(tl.float32)
    dw, db = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    dw2, db2 = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    first = tl.program_id(0) * each
    start = first.to(tl.int64)
    for row in tl.range(first, tl.minimum(first + each, rows), num_stages=STAGES):
        place = (start + (row - first)) * width + column
        d = tl.load(one + place, there, 0.0).to(tl.float32)
        d2 = tl.load(other + place, there, 0.0).to(tl.float32)
        x = tl.load(hidden + place, there, 0.0).to(tl.float32)
        more = tl.load(beside + place, there, 0.0).to(tl.float32)
        scale = tl.load(scales + row)
        x = tl.where(there, (x - tl.load(means + row)) * scale, 0.0)
        dw += d * x
        db += d
        dw2 += d2 * x
        db2 += d2
        dx = d * w + d2 * w2
        dx -= tl.sum(dx, 0) / width + x * (tl.sum(dx * x, 0) / width)
        tl.store(out + place, dx * scale + more, there)
    place = tl.program_id(0) * width + column
    tl.store(of_weight + place, dw, there)
    tl.store(of_bias + place, db, there)
    tl.store(of_weight2 + place, dw2, there)
    tl.store(of_bias2 + place, db2, there)

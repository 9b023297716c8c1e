"""Cross entropy in Triton: the forward and the backward pass read the logits once each.

Compiled from PyTorch, the way there runs at a quarter of the memory's rate and the way back at 60%
(docs/evidence/where-time-goes-h200/pythia-1b-half-weights-32.txt): in a small model a large part of a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 8192  # logits
IGNORED = -100


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean loss over the labels that count."""
    labels = labels.flatten()
    losses, _ = rows_of(logits.flatten(0, -2), labels)
    return losses.sum() / (labels != IGNORED).sum()


@torch.library.custom_op("bench_would::cross_entropy", mutates_args=())
def rows_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row (0 where no label counts), and the logarithm of its sum of exponentials."""
    logits = logits.contiguous()
    count, width = logits.shape
    losses, sums = (logits.new_empty(count, dtype=torch.float32) for _ in range(2))
    _there[(count,)](logits, labels, losses, sums, width, IGNORED, AT_ONCE, num_warps=8)
    return losses, sums


@torch.library.custom_op("bench_would::cross_entropy_gradient", mutates_args=())
def _gradient(change: Tensor, logits: Tensor, labels: Tensor, sums: Tensor) -> Tensor:
    logits = logits.contiguous()
    count, width = logits.shape
    out = torch.empty_like(logits)
    grid = (count, triton.cdiv(width, AT_ONCE))
    _back[grid](change.contiguous(), logits, labels, sums, out, width, IGNORED, AT_ONCE, num_warps=8)
    return out


@rows_of.register_fake
def _(logits: Tensor, _labels: Tensor) -> tuple[Tensor, Tensor]:
    shape = logits.shape[:1]
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.float32)


@_gradient.register_fake
def _(_change: Tensor, logits: Tensor, _labels: Tensor, _sums: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, change: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return _gradient(change, *ctx.saved_tensors), None


torch.library.register_autograd("bench_would::cross_entropy", _backward, setup_context=_keep)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _there(logits, labels, losses, sums, width, ignored: tl.constexpr, at_once: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = -float("inf")
    total = 0.0
    for first in range(0, width, at_once):
        column = first + tl.arange(0, at_once)
        x = tl.load(logits + row * width + column, column < width, -float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp2((largest - larger) * LOG2E) + tl.sum(tl.exp2((x - larger) * LOG2E), 0)
        largest = larger
    whole = largest + tl.log(total)
    label = tl.load(labels + row)
    asked = label != ignored
    wanted = tl.load(logits + row * width + label, asked, 0.0).to(tl.float32)
    tl.store(losses + row, tl.where(asked, whole - wanted, 0.0))
    tl.store(sums + row, whole)


@triton.jit
def _back(change, logits, labels, sums, out, width, ignored: tl.constexpr, at_once: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * at_once + tl.arange(0, at_once)
    inside = column < width
    label = tl.load(labels + row)
    weight = tl.where(label != ignored, tl.load(change + row), 0.0)
    x = tl.load(logits + row * width + column, inside, -float("inf")).to(tl.float32)
    share = tl.exp2((x - tl.load(sums + row)) * LOG2E)
    tl.store(out + row * width + column, weight * (share - tl.where(column == label, 1.0, 0.0)), inside)

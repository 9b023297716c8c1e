"""Cross entropy in Triton: the forward and the backward pass read the logits once each.

Compiled from PyTorch, the forward pass of cross entropy reaches a quarter of the memory bandwidth and the
backward pass 60% (docs/evidence/where-time-goes-h200/pythia-1b-half-weights-32.txt). In a small model this is
a large part of a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.training.objectives.objective import IGNORED
from bench.training.triton.loss import LOG2E, log_sum_of_row

BLOCK = 8192  # logits that a program holds at once


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean loss over the labels that are not ignored."""
    labels = labels.flatten()
    losses, _ = rows_of(logits.flatten(0, -2), labels)
    return losses.sum() / (labels != IGNORED).sum()


@torch.library.custom_op("bench_would::cross_entropy", mutates_args=())
def rows_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss of each row (0 if its label is ignored) and its logarithm of summed exponentials."""
    logits = logits.contiguous()
    count, width = logits.shape
    losses, sums = (logits.new_empty(count, dtype=torch.float32) for _ in range(2))
    _forward_kernel[(count,)](logits, labels, losses, sums, width, IGNORED, BLOCK, num_warps=8)
    return losses, sums


@torch.library.custom_op("bench_would::cross_entropy_gradient", mutates_args=())
def _gradient(grad: Tensor, logits: Tensor, labels: Tensor, sums: Tensor) -> Tensor:
    logits = logits.contiguous()
    count, width = logits.shape
    out = torch.empty_like(logits)
    grid = (count, triton.cdiv(width, BLOCK))
    _backward_kernel[grid](grad.contiguous(), logits, labels, sums, out, width, IGNORED, BLOCK, num_warps=8)
    return out


@rows_of.register_fake
def _(logits: Tensor, _labels: Tensor) -> tuple[Tensor, Tensor]:
    shape = logits.shape[:1]
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.float32)


@_gradient.register_fake
def _(_grad: Tensor, logits: Tensor, _labels: Tensor, _sums: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return _gradient(grad, *ctx.saved_tensors), None


torch.library.register_autograd("bench_would::cross_entropy", _backward, setup_context=_save_inputs)


@triton.jit
def _forward_kernel(logits, labels, losses, sums, width, ignored: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    log_sum = log_sum_of_row(logits + row * width, width, block)
    label = tl.load(labels + row)
    counts = label != ignored
    target = tl.load(logits + row * width + label, counts, 0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log_sum - target, 0.0))
    tl.store(sums + row, log_sum)


@triton.jit
def _backward_kernel(grad, logits, labels, sums, out, width, ignored: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    in_row = column < width
    label = tl.load(labels + row)
    weight = tl.where(label != ignored, tl.load(grad + row), 0.0)
    x = tl.load(logits + row * width + column, in_row, -float("inf")).to(tl.float32)
    probability = tl.exp2((x - tl.load(sums + row)) * LOG2E)
    tl.store(out + row * width + column, weight * (probability - tl.where(column == label, 1.0, 0.0)), in_row)

"""Depthwise convolutions on a GPU, in Triton: one filter a channel, read and written once.

cuDNN's gradient of such filters runs far below the memory's rate: two of three milliseconds of ConvNeXt's
backward pass went there (docs/measurements.md). Channels lie innermost here, as the layers around want it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

SIDE = 7  # of the filters: the kernels are written out for it
REACH = SIDE // 2
TAPS = SIDE * SIDE
CHANNELS = 32  # of one program
MOST_COLUMNS = 16  # of one program
PROGRAMS = 2048  # of the filters' gradient at least: a few for each multiprocessor


def fits(module: nn.Module) -> bool:
    """A depthwise convolution of seven by seven that keeps height and width."""
    return (
        isinstance(module, nn.Conv2d)
        and module.groups == module.in_channels == module.out_channels
        and module.kernel_size == (SIDE, SIDE)
        and module.padding == (REACH, REACH)
        and module.stride == module.dilation == (1, 1)
    )


def forward_of(conv: nn.Conv2d) -> Any:
    """The same convolution, for the same parameters."""

    def forward(images: Tensor) -> Tensor:
        filters = conv.weight.flatten(1).t()
        out: Tensor = _convolved(images.permute(0, 2, 3, 1), filters)
        if conv.bias is not None:
            out = out + conv.bias
        return out.permute(0, 3, 1, 2)

    return forward


# Operators of their own, so that torch.compile takes them as they are.


@torch.library.custom_op("bench::depthwise", mutates_args=())
def _convolved(images: Tensor, filters: Tensor) -> Tensor:
    """[samples, height, width, channels] and [taps, channels]."""
    images, filters = images.contiguous(), filters.contiguous()
    out = torch.empty_like(images)
    samples, height, width, channels = images.shape
    columns = min(MOST_COLUMNS, triton.next_power_of_2(width))
    grid = (samples * height * triton.cdiv(width, columns), triton.cdiv(channels, CHANNELS))
    _convolve[grid](images, filters, out, height, width, channels, columns, CHANNELS)
    return out


@torch.library.custom_op("bench::depthwise_filters", mutates_args=())
def _filters_gradient(images: Tensor, gradient: Tensor) -> Tensor:
    """How the loss changes with each tap of each filter: [taps, channels]."""
    images, gradient = images.contiguous(), gradient.contiguous()
    samples, height, width, channels = images.shape
    blocks = triton.cdiv(channels, CHANNELS)
    parts = min(samples * height, triton.cdiv(PROGRAMS, blocks * SIDE))
    sums = torch.empty(parts, TAPS, channels, device=images.device)
    columns = min(MOST_COLUMNS, triton.next_power_of_2(width))
    rows = triton.cdiv(samples * height, parts)
    _correlate[(parts, SIDE, blocks)](
        images, gradient, sums, samples * height, rows, height, width, channels, columns, CHANNELS
    )
    return sums.sum(0)


@_convolved.register_fake
def _(images: Tensor, _filters: Tensor) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)


@_filters_gradient.register_fake
def _(images: Tensor, _gradient: Tensor) -> Tensor:
    return images.new_empty(TAPS, images.shape[-1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    images, filters = ctx.saved_tensors
    # The gradient of a correlation is one with the filters turned around.
    return _convolved(gradient, filters.flip(0)), _filters_gradient(images, gradient).to(filters.dtype)


torch.library.register_autograd("bench::depthwise", _backward, setup_context=_keep)


@triton.jit
def _convolve(images, filters, out, height, width, channels, columns: tl.constexpr, many: tl.constexpr):
    """A stretch of one row of one sample, for some channels."""
    stretches = tl.cdiv(width, columns)
    row = tl.program_id(0) // stretches
    column = tl.program_id(0) % stretches * columns + tl.arange(0, columns)
    channel = tl.program_id(1) * many + tl.arange(0, many)
    wide = tl.full((columns,), width, tl.int64)  # places go beyond 32 bits
    total = tl.zeros((columns, many), tl.float32)
    for i in tl.static_range(7):
        above = row % height + i - 3
        if (above >= 0) & (above < height):
            start = (row + i - 3) * wide
            for j in tl.static_range(7):
                tap = tl.load(filters + (7 * i + j) * channels + channel, channel < channels, 0.0)
                tap = tap.to(tl.float32)[None, :]
                total += tap * _loaded(images, start, column + j - 3, channel, width, channels)
    place = (row * wide + column)[:, None] * channels + channel[None, :]
    tl.store(out + place, total, (column < width)[:, None] & (channel < channels)[None, :])


@triton.jit
def _correlate(
    images, gradient, sums, all_rows, rows, height, width, channels,
    columns: tl.constexpr, many: tl.constexpr,
):  # fmt: skip
    """One row of taps of some channels' filters, over some rows of all samples."""
    part, i = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * many + tl.arange(0, many)
    wide = tl.full((columns,), width, tl.int64)
    t0 = tl.zeros((columns, many), tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    for row in range(part * rows, tl.minimum(part * rows + rows, all_rows)):
        above = row % height + i - 3
        if (above >= 0) & (above < height):
            start = (row + i - 3) * wide
            for first in range(0, width, columns):
                column = first + tl.arange(0, columns)
                change = _loaded(gradient, row * wide, column, channel, width, channels)
                t0 += change * _loaded(images, start, column - 3, channel, width, channels)
                t1 += change * _loaded(images, start, column - 2, channel, width, channels)
                t2 += change * _loaded(images, start, column - 1, channel, width, channels)
                t3 += change * _loaded(images, start, column, channel, width, channels)
                t4 += change * _loaded(images, start, column + 1, channel, width, channels)
                t5 += change * _loaded(images, start, column + 2, channel, width, channels)
                t6 += change * _loaded(images, start, column + 3, channel, width, channels)
    inside = channel < channels
    taps = sums + (part * 49 + i * 7) * channels + channel
    tl.store(taps, tl.sum(t0, 0), inside)
    tl.store(taps + channels, tl.sum(t1, 0), inside)
    tl.store(taps + 2 * channels, tl.sum(t2, 0), inside)
    tl.store(taps + 3 * channels, tl.sum(t3, 0), inside)
    tl.store(taps + 4 * channels, tl.sum(t4, 0), inside)
    tl.store(taps + 5 * channels, tl.sum(t5, 0), inside)
    tl.store(taps + 6 * channels, tl.sum(t6, 0), inside)


@triton.jit
def _loaded(images, start, column, channel, width, channels):
    """Pixels of one row, as far as they are in the image; else nothing, as the padding has it."""
    mask = ((column >= 0) & (column < width))[:, None] & (channel < channels)[None, :]
    place = (start + column)[:, None] * channels + channel[None, :]
    return tl.load(images + place, mask, 0.0).to(tl.float32)

"""Depthwise convolutions on a GPU, in Triton: one filter a channel, read and written once.

cuDNN's gradient of such filters runs far below the memory's rate: it took two of three milliseconds of
ConvNeXt's backward pass (docs/measurements.md). Channels are innermost, as in the neighbouring layers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

SIDE = 7  # of the filters; the kernels are unrolled for this number
REACH = SIDE // 2
TAPS = SIDE * SIDE
CHANNELS = 32  # of one program
MAX_COLUMNS = 16  # of one program
MIN_PROGRAMS = 2048  # of the filters' gradient: a few for each multiprocessor


def fits(module: nn.Module) -> bool:
    """Whether the module is a depthwise convolution of seven by seven that keeps height and width.

    Subclasses of nn.Conv2d may change the weight or the images before they convolve.
    """
    return (
        type(module) is nn.Conv2d
        and module.groups == module.in_channels == module.out_channels
        and module.kernel_size == (SIDE, SIDE)
        and module.padding == (REACH, REACH)
        and module.padding_mode == "zeros"
        and module.stride == module.dilation == (1, 1)
    )


def forward_of(conv: nn.Conv2d) -> Any:
    """Return the forward function of a convolution that `fits`, with its parameters."""

    def forward(images: Tensor) -> Tensor:
        filters = conv.weight.flatten(1).t()
        out: Tensor = _convolved(images.permute(0, 2, 3, 1), filters)
        if conv.bias is not None:
            out = out + conv.bias
        return out.permute(0, 3, 1, 2)

    return forward


# These functions are registered as operators, so that torch.compile does not trace into them.


@torch.library.custom_op("bench::depthwise", mutates_args=())
def _convolved(images: Tensor, filters: Tensor) -> Tensor:
    """Convolve images [samples, height, width, channels] with filters [taps, channels]."""
    images, filters = images.contiguous(), filters.contiguous()
    out = torch.empty_like(images)
    samples, height, width, channels = images.shape
    columns = min(MAX_COLUMNS, triton.next_power_of_2(width))
    grid = (samples * height * triton.cdiv(width, columns), triton.cdiv(channels, CHANNELS))
    _convolve_kernel[grid](images, filters, out, height, width, channels, columns, CHANNELS)
    return out


@torch.library.custom_op("bench::depthwise_filters", mutates_args=())
def _filters_gradient(images: Tensor, grad_out: Tensor) -> Tensor:
    """Return the gradient of the filters, [taps, channels]."""
    images, grad_out = images.contiguous(), grad_out.contiguous()
    samples, height, width, channels = images.shape
    blocks = triton.cdiv(channels, CHANNELS)
    programs = min(samples * height, triton.cdiv(MIN_PROGRAMS, blocks * SIDE))
    sums = torch.empty(programs, TAPS, channels, device=images.device)
    columns = min(MAX_COLUMNS, triton.next_power_of_2(width))
    rows_each = triton.cdiv(samples * height, programs)
    _correlate_kernel[(programs, SIDE, blocks)](
        images, grad_out, sums, samples * height, rows_each, height, width, channels, columns, CHANNELS
    )
    return sums.sum(0)


@_convolved.register_fake
def _(images: Tensor, _filters: Tensor) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)


@_filters_gradient.register_fake
def _(images: Tensor, _grad_out: Tensor) -> Tensor:
    return images.new_empty(TAPS, images.shape[-1], dtype=torch.float32)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    images, filters = ctx.saved_tensors
    # The gradient of a correlation is a correlation with the filters reversed.
    return _convolved(grad_out, filters.flip(0)), _filters_gradient(images, grad_out).to(filters.dtype)


torch.library.register_autograd("bench::depthwise", _backward, setup_context=_save_inputs)


@triton.jit
def _convolve_kernel(
    images, filters, out, height, width, channels, columns: tl.constexpr, channels_each: tl.constexpr
):
    """Convolve a stretch of one row of one sample, in `channels_each` channels."""
    stretches = tl.cdiv(width, columns)
    row = tl.program_id(0) // stretches
    column = tl.program_id(0) % stretches * columns + tl.arange(0, columns)
    channel = tl.program_id(1) * channels_each + tl.arange(0, channels_each)
    wide = tl.full((columns,), width, tl.int64)  # offsets exceed 32 bits
    total = tl.zeros((columns, channels_each), tl.float32)
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
def _correlate_kernel(
    images,
    grad_out,
    sums,
    rows,
    rows_each,
    height,
    width,
    channels,
    columns: tl.constexpr,
    channels_each: tl.constexpr,
):
    """Compute the gradient of one row of taps in `channels_each` channels, summed over `rows_each` rows."""
    program, i = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * channels_each + tl.arange(0, channels_each)
    wide = tl.full((columns,), width, tl.int64)
    t0 = tl.zeros((columns, channels_each), tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    for row in range(program * rows_each, tl.minimum(program * rows_each + rows_each, rows)):
        above = row % height + i - 3
        if (above >= 0) & (above < height):
            start = (row + i - 3) * wide
            for first in range(0, width, columns):
                column = first + tl.arange(0, columns)
                dy = _loaded(grad_out, row * wide, column, channel, width, channels)
                t0 += dy * _loaded(images, start, column - 3, channel, width, channels)
                t1 += dy * _loaded(images, start, column - 2, channel, width, channels)
                t2 += dy * _loaded(images, start, column - 1, channel, width, channels)
                t3 += dy * _loaded(images, start, column, channel, width, channels)
                t4 += dy * _loaded(images, start, column + 1, channel, width, channels)
                t5 += dy * _loaded(images, start, column + 2, channel, width, channels)
                t6 += dy * _loaded(images, start, column + 3, channel, width, channels)
    inside = channel < channels
    taps = sums + (program * 49 + i * 7) * channels + channel
    tl.store(taps, tl.sum(t0, 0), inside)
    tl.store(taps + channels, tl.sum(t1, 0), inside)
    tl.store(taps + 2 * channels, tl.sum(t2, 0), inside)
    tl.store(taps + 3 * channels, tl.sum(t3, 0), inside)
    tl.store(taps + 4 * channels, tl.sum(t4, 0), inside)
    tl.store(taps + 5 * channels, tl.sum(t5, 0), inside)
    tl.store(taps + 6 * channels, tl.sum(t6, 0), inside)


@triton.jit
def _loaded(images, start, column, channel, width, channels):
    """Load pixels of one row in fp32; 0 outside of the image, as the padding has it."""
    mask = ((column >= 0) & (column < width))[:, None] & (channel < channels)[None, :]
    place = (start + column)[:, None] * channels + channel[None, :]
    return tl.load(images + place, mask, 0.0).to(tl.float32)

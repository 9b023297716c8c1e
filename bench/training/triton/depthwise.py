"""Depthwise convolutions on a GPU, in Triton: one filter a channel, numbers in fp32 or half precision.

In fp32 cuDNN's gradient of such filters runs far below the memory's rate, and in half precision its gradient
of the images does (results/frontier-h100/depthwise.txt). Channels are innermost, as in the neighbouring
layers. All sums are in fp32. A thread computes four channels, and moves a window of seven columns over an
image, so that it loads each number once for a row of taps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

SIDE = 7  # of the filters; the kernels are unrolled for this number
TAPS = SIDE * SIDE
LINE = 128  # bytes of channels of one program: a line of the cache
OF_A_WARP = 128  # numbers that a warp computes at once: four a thread
WARPS = 4  # of a program that convolves
PROGRAMS = 528  # of the filters' gradient at most: twice two for each of an H100's 132 multiprocessors
REGISTERS = 128  # of a thread of these programs: with more, a multiprocessor would hold one program


def forward_of(conv: nn.Conv2d) -> Any:
    """Return the forward function of one of `depthwise_in` (bench/training/models), with its parameters.

    Under autocast it computes in half precision, as F.conv2d does.
    """

    def forward(images: Tensor) -> Tensor:
        filters, bias, device = conv.weight, conv.bias, images.device.type
        if torch.is_autocast_enabled(device):
            half = torch.get_autocast_dtype(device)
            images, filters = images.to(half), filters.to(half)
            bias = None if bias is None else bias.to(half)
        out: Tensor = _convolved(images.permute(0, 2, 3, 1), filters.flatten(1).t(), bias)
        return out.permute(0, 3, 1, 2)

    return forward


# These functions are registered as operators, so that torch.compile does not trace into them.


@torch.library.custom_op("bench::depthwise", mutates_args=())
def _convolved(images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve images [samples, height, width, channels] with filters [taps, channels]."""
    return _launch(images, filters, bias, mirrored=False)


@torch.library.custom_op("bench::depthwise_images", mutates_args=())
def _images_gradient(grad_out: Tensor, filters: Tensor) -> Tensor:
    """Return the gradient of the images: a convolution with the filters mirrored."""
    return _launch(grad_out, filters, None, mirrored=True)


def _launch(images: Tensor, filters: Tensor, bias: Tensor | None, *, mirrored: bool) -> Tensor:
    images, filters = images.contiguous(), filters.contiguous()
    out = torch.empty_like(images)
    samples, height, width, channels = images.shape
    rows, channels_each = samples * height, LINE // images.element_size()
    rows_each = WARPS * OF_A_WARP // channels_each
    grid = (triton.cdiv(rows, rows_each) * triton.cdiv(width, SIDE), triton.cdiv(channels, channels_each))
    sizes = (rows, height, width, channels, rows_each, channels_each)
    _convolve_kernel[grid](images, filters, bias, out, *sizes, mirrored, bias is not None, num_warps=WARPS)
    return out


@torch.library.custom_op("bench::depthwise_filters", mutates_args=())
def _filters_gradient(images: Tensor, grad_out: Tensor) -> Tensor:
    """Return the gradient of the filters, [taps, channels], in fp32."""
    images, grad_out = images.contiguous(), grad_out.contiguous()
    samples, height, width, channels = images.shape
    rows, channels_each = samples * height, LINE // images.element_size()
    rows_each = OF_A_WARP // channels_each
    steps, blocks = triton.cdiv(rows, rows_each), triton.cdiv(channels, channels_each)
    steps_each = triton.cdiv(steps * blocks, PROGRAMS)
    programs = triton.cdiv(steps, steps_each)
    sums = torch.empty(programs, TAPS, channels, device=images.device)
    sizes = (rows, steps_each, height, width, channels, rows_each, channels_each)
    options = {"num_warps": SIDE + 1, "maxnreg": REGISTERS}
    _correlate_kernel[(programs, blocks)](images, grad_out, sums, *sizes, **options)
    return sums.sum(0)


@_convolved.register_fake
def _(images: Tensor, _filters: Tensor, _bias: Tensor | None) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)


@_images_gradient.register_fake
def _(grad_out: Tensor, _filters: Tensor) -> Tensor:
    return torch.empty_like(grad_out, memory_format=torch.contiguous_format)


@_filters_gradient.register_fake
def _(images: Tensor, _grad_out: Tensor) -> Tensor:
    return images.new_empty(TAPS, images.shape[-1], dtype=torch.float32)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG001
    images, filters, bias = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(images, filters)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    images, filters = ctx.saved_tensors
    # Outside of the operators, so that the compiler can fuse the sum with the code that makes `grad_out`.
    grad_bias = grad_out.sum((0, 1, 2)) if ctx.biased else None
    grad_filters = _filters_gradient(images, grad_out).to(filters.dtype)
    return _images_gradient(grad_out, filters), grad_filters, grad_bias


torch.library.register_autograd("bench::depthwise", _backward, setup_context=_save_inputs)


# In both kernels the names of a window's columns, and of the sums, move by one from column to column. The
# loops over columns are unrolled, so that nothing is copied.


@triton.jit
def _convolve_kernel(
    images,
    filters,
    bias,
    out,
    rows,
    height,
    width,
    channels,
    rows_each: tl.constexpr,
    channels_each: tl.constexpr,
    mirrored: tl.constexpr,
    biased: tl.constexpr,
):
    """Convolve seven columns of `rows_each` rows in `channels_each` channels."""
    stretches = tl.cdiv(width, 7)
    first = tl.program_id(0) % stretches * 7
    row = tl.program_id(0) // stretches * rows_each + tl.arange(0, rows_each)[:, None]
    channel = tl.program_id(1) * channels_each + tl.arange(0, channels_each)[None, :]
    start = row.to(tl.int64) * width * channels + channel  # offsets exceed 32 bits
    inside = (row < rows) & (channel < channels)
    a0 = tl.zeros((rows_each, channels_each), tl.float32)
    if biased:
        a0 += tl.load(bias + channel, channel < channels, 0.0).to(tl.float32)
    a1, a2, a3, a4, a5, a6 = a0, a0, a0, a0, a0, a0
    for i in range(7):
        above = row % height + i - 3
        in_image = inside & (above >= 0) & (above < height)
        source = images + start + (i - 3) * width * channels
        w0 = _tap(filters, 7 * i, channel, channels, mirrored)
        w1 = _tap(filters, 7 * i + 1, channel, channels, mirrored)
        w2 = _tap(filters, 7 * i + 2, channel, channels, mirrored)
        w3 = _tap(filters, 7 * i + 3, channel, channels, mirrored)
        w4 = _tap(filters, 7 * i + 4, channel, channels, mirrored)
        w5 = _tap(filters, 7 * i + 5, channel, channels, mirrored)
        w6 = _tap(filters, 7 * i + 6, channel, channels, mirrored)
        x0 = _column(source, first - 3, in_image, width, channels)
        x1 = _column(source, first - 2, in_image, width, channels)
        x2 = _column(source, first - 1, in_image, width, channels)
        x3 = _column(source, first, in_image, width, channels)
        x4 = _column(source, first + 1, in_image, width, channels)
        x5 = _column(source, first + 2, in_image, width, channels)
        for k in tl.static_range(7):
            x6 = _column(source, first + k + 3, in_image, width, channels)
            a0 = a0 + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + w4 * x4 + w5 * x5 + w6 * x6
            a0, a1, a2, a3, a4, a5, a6 = a1, a2, a3, a4, a5, a6, a0
            x0, x1, x2, x3, x4, x5 = x1, x2, x3, x4, x5, x6
    for k in tl.static_range(7):
        column = tl.full(inside.shape, first + k, tl.int32)
        tl.store(out + start + column * channels, a0, inside & (column < width))
        a0, a1, a2, a3, a4, a5 = a1, a2, a3, a4, a5, a6


@triton.jit
def _correlate_kernel(
    images,
    grad_out,
    sums,
    rows,
    steps_each,
    height,
    width,
    channels,
    rows_each: tl.constexpr,
    channels_each: tl.constexpr,
):
    """Compute the gradient of all taps in `channels_each` channels, summed over steps of `rows_each` rows.

    The first axis is that of the rows of taps, one a warp; an eighth warp is idle, because Triton's axes are
    powers of two.
    """
    i = tl.arange(0, 8)[:, None, None]
    channel = tl.program_id(1) * channels_each + tl.arange(0, channels_each)[None, None, :]
    t0 = tl.zeros((8, rows_each, channels_each), tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    for step in range(steps_each):
        row = (tl.program_id(0) * steps_each + step) * rows_each + tl.arange(0, rows_each)[None, :, None]
        above = row % height + i - 3
        in_image = (above >= 0) & (above < height) & (row < rows) & (channel < channels) & (i < 7)
        start = row.to(tl.int64) * width * channels + channel
        source = images + start + (i - 3) * width * channels
        changes = grad_out + tl.broadcast_to(start, (8, rows_each, channels_each))
        x0 = tl.zeros((8, rows_each, channels_each), tl.float32)
        x1, x2 = x0, x0
        x3 = _column(source, 0, in_image, width, channels)
        x4 = _column(source, 1, in_image, width, channels)
        x5 = _column(source, 2, in_image, width, channels)
        for first in range(0, width, 7):
            for k in tl.static_range(7):
                x6 = _column(source, first + k + 3, in_image, width, channels)
                dy = _column(changes, first + k, in_image, width, channels)
                t0 += dy * x0
                t1 += dy * x1
                t2 += dy * x2
                t3 += dy * x3
                t4 += dy * x4
                t5 += dy * x5
                t6 += dy * x6
                x0, x1, x2, x3, x4, x5 = x1, x2, x3, x4, x5, x6
    place = sums + (tl.program_id(0) * 49 + 7 * i) * channels + channel
    stored = (i < 7) & (channel < channels)
    for k in tl.static_range(7):
        tl.store(place + k * channels, tl.sum(t0, 1, keep_dims=True), stored)
        t0, t1, t2, t3, t4, t5 = t1, t2, t3, t4, t5, t6


@triton.jit
def _tap(filters, tap, channel, channels, mirrored: tl.constexpr):
    """Load one tap of several filters in fp32; counted from the last tap if the filters are mirrored."""
    if mirrored:
        tap = 48 - tap
    return tl.load(filters + tap * channels + channel, channel < channels, 0.0).to(tl.float32)


@triton.jit
def _column(source, column, in_image, width, channels):
    """Load one column of several rows in fp32; 0 outside of the image, as the padding has it."""
    column = tl.full(in_image.shape, column, tl.int32)  # the interpreter cannot mask by a number
    inside = in_image & (column >= 0) & (column < width)
    return tl.load(source + column * channels, inside, 0.0).to(tl.float32)

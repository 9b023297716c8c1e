"""Memory of PyTorch's memory-efficient attention with a bias, in addition to its inputs and results.

Relies on: ATen/native/transformers/attention.cpp (preprocess_mask), cuda/attention_backward.cu, and under
cuda/mem_eff_attention kernel_backward.h (Params::workspace_size) and kernels/cutlassB.h (tiles) of torch 2.11
to 2.13, for compute capability 8.0 and later. No issue known.
Remove when tensors without contents tell the memory of a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BIAS_ALIGNMENT, GRADIENT_ALIGNMENT = 8, 16  # numbers, to which rows of a bias and of its gradient are padded
FP32 = 4  # bytes of a sum
LOCK = 16  # bytes beside each tile of sums: a lock, a counter and padding


def seen_bias(bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the bias as the kernel reads it: with padded rows, and expanded to all samples and heads."""
    from torch.nn.functional import pad

    columns = bias.shape[-1]
    if columns % BIAS_ALIGNMENT:
        bias = pad(bias, (0, -columns % BIAS_ALIGNMENT))[..., :columns]
    return bias.expand(*query.shape[:3], key.shape[2])


def gradient_of_bias(bias: Tensor) -> Tensor:
    """Return the gradient as the kernel writes it: for each sample and head, with padded rows."""
    *rows, columns = bias.shape
    return bias.new_empty(*rows, _up_to(columns, GRADIENT_ALIGNMENT))


def workspace(query: Tensor, value: Tensor) -> Tensor:
    """Return the sums of gradients in fp32 that the backward pass writes tile by tile, as bytes.

    They are the sums of the queries' gradients; for heads in half precision that are wider than 128, also
    those of the keys' and of the values'.
    """
    import torch

    samples, heads, length, width = query.shape
    half, widest = query.element_size() < FP32, max(width, value.shape[-1])
    rows, columns = _tile(widest, half=half)
    tiles = -(-length // rows) * -(-width // columns)
    of_a_head = tiles * (LOCK + FP32 * rows * columns)
    if half and widest > 128:
        of_a_head += FP32 * columns * (_up_to(width, rows) + _up_to(value.shape[-1], rows))
    return query.new_empty(samples * heads * of_a_head, dtype=torch.uint8)


def _tile(width: int, *, half: bool) -> tuple[int, int]:
    """Return the numbers of queries and of keys that the kernel for heads of this width computes at once."""
    if width <= 64:
        return 64, 64
    return (128, 128) if half and 96 < width <= 128 else (128, 64)


def _up_to(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple

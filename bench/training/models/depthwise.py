"""Depthwise convolutions that the kernels of bench/training/triton/depthwise.py can compute.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

SIDE = 7  # of the filters; the kernels are unrolled for this number


def depthwise_in(model: nn.Module) -> list[nn.Conv2d]:
    """Return the depthwise convolutions of seven by seven that keep height and width.

    Subclasses of nn.Conv2d are left out, because they may change the weight or the images before they
    convolve.
    """
    from torch import nn

    return [part for part in model.modules() if type(part) is nn.Conv2d and _fits(part)]


def _fits(conv: nn.Conv2d) -> bool:
    keeps_sizes: bool = (
        conv.groups == conv.in_channels == conv.out_channels
        and conv.kernel_size == (SIDE, SIDE)
        and conv.padding == (SIDE // 2, SIDE // 2)
        and conv.padding_mode == "zeros"
        and conv.stride == conv.dilation == (1, 1)
    )
    return keeps_sizes

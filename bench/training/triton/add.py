"""Add half-precision gradients to their fp32 sums on a GPU, in Triton: each number is read and written once.

PyTorch adds tensors of two precisions at half the memory's rate, a large part of a pass with few samples:
pythia-6.9b at micro-batch 1 took 175 ms a pass with PyTorch's addition, and 164 ms with this one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 4096  # elements of one program


def add(total: Tensor, more: Tensor) -> None:
    """Compute `total += more` for contiguous tensors."""
    _add_kernel[(triton.cdiv(total.numel(), AT_ONCE),)](total, more, total.numel(), AT_ONCE, num_warps=8)


@triton.jit
def _add_kernel(total, more, count, at_once: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    inside = place < count
    added = tl.load(total + place, inside) + tl.load(more + place, inside).to(tl.float32)
    tl.store(total + place, added, inside)

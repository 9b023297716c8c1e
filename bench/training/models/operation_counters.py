"""Attention and scans that count their operations, in place of kernels that torch's counter does not see.

Imports torch only when called.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.base.errors import BadInput
from bench.training.models.attention import attends_causally, ends_of
from bench.training.models.mamba import SCAN_OPERATIONS
from bench.training.models.model import SCORE_BLOCK, Model
from bench.training.models.stand_in import stand_in
from bench.training.objectives.documents import Documents

if TYPE_CHECKING:
    from torch import Tensor


class AttentionCount:
    """Attention for transformers that computes nothing, and counts the operations of its mathematics."""

    flops = 0
    backward_flops = 0
    query_elements = 0
    biased_scores = 0
    biased_blocks = 0

    def __init__(self, documents: Documents | None = None) -> None:
        self.documents = documents
        self.calls_with_ends: set[bool] = set()  # whether calls were told where documents end

    def require_documents(self, model: Model) -> None:
        """Raise BadInput if a recipe packs documents and the model's attention is not told where they end."""
        if self.documents and self.calls_with_ends != {True}:
            raise BadInput(
                f"documents: the code of {model.family} does not tell all of its attention where they end",
                where=model.name,
                advice="leave documents out of its recipe",
            )

    def registered(self) -> str:
        """Register this object with transformers; return the name for `attn_implementation`."""
        from transformers import AttentionInterface

        AttentionInterface.register("bench_counted", self._attend)
        return "bench_counted"

    def _attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *_: Any,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        self.calls_with_ends.add(ends_of(attention_mask) is not None)
        samples, heads, length, width = query.shape
        self.query_elements += samples * heads * length * width
        if heads % key.shape[1]:
            reason = f"{key.shape[1]} heads of keys and values do not divide {heads} of queries"
            raise BadInput(reason)
        causal = attends_causally(module, is_causal)
        pairs = _pairs(length, key.shape[2], sliding_window, causal=causal)
        if self.documents:
            pairs = self.documents.pairs(length, sliding_window)
        if has_bias_of_heads(more.get("position_bias")) or has_bias_of_heads(attention_mask):
            self.biased_scores += samples * heads * pairs
            rows, columns = (math.ceil(positions / SCORE_BLOCK) for positions in (length, key.shape[2]))
            self.biased_blocks += samples * heads * _pairs(rows, columns, None, causal=causal)
        flops = 2 * samples * heads * pairs * (width + value.shape[-1])
        self.flops += flops

        def count() -> None:
            self.backward_flops += 2 * flops

        shape = samples, length, heads, value.shape[-1]
        return stand_in(shape, query, key, value, in_backward=count), None


def has_bias_of_heads(mask: Tensor | None) -> bool:
    """Whether attention adds to its scores a bias that differs between heads, which no mask does."""
    return mask is not None and mask.dim() == 4 and mask.size(0) > 0 and mask.size(1) > 1


class ScanCount:
    """A selective scan that computes nothing, and counts the operations of its mathematics (mamba.py)."""

    flops = 0
    backward_flops = 0

    def scan(self, entry: Tensor, time_step: Tensor, decay: Tensor, *given: Tensor, **more: Any) -> Tensor:
        """Count a scan; return a tensor in place of its result."""
        import torch

        flops = SCAN_OPERATIONS * entry.numel() * decay.shape[-1]
        self.flops += flops

        def count() -> None:
            self.backward_flops += 2 * flops

        tensors = [part for part in (*given, *more.values()) if isinstance(part, torch.Tensor)]
        return stand_in(entry.shape, entry, time_step, decay, *tensors, in_backward=count)


def _pairs(length: int, keys: int, window: int | None, *, causal: bool) -> int:
    """Count the pairs of positions that attend: all, or the lower triangle, limited to a window."""
    if length != keys:
        return length * keys
    apart = min(window or length, length)
    triangle = apart * length - apart * (apart - 1) // 2
    return triangle if causal else 2 * triangle - length

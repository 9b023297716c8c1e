"""Fused attention without contents: it has the results of fused kernels, and keeps what these keep.

Counts of memory run it in place of attention, so that they need no GPU. Imports torch only when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.training.models.attention import (
    document_mask,
    ends_of,
    register_attention,
    repeated_heads,
    takes_grouped_heads,
    takes_window,
    window_mask,
    window_of,
)
from bench.training.models.stand_in import empty_operator
from bench.training.vendor.efficient_attention import gradient_of_bias, seen_bias, workspace

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HEADS_DIMENSIONS = 4  # of queries: samples, heads, positions, width
ATTENTION = "bench_kept"  # the name under which attention without contents is registered


@cache
def kept_attention() -> str:
    """Register attention that computes nothing and keeps the tensors of fused kernels; return its name."""

    def attend(
        _: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
    ) -> tuple[Tensor, None]:
        query, key = query.to(value.dtype), key.to(value.dtype)
        if (ends := ends_of(attention_mask)) is not None:
            fused = takes_window(key, value)
            attention_mask = None if fused else document_mask(query, ends, more.get("sliding_window"))
        if (window := window_of(attention_mask)) is not None:
            # Counted as on a GPU, where FlashAttention takes windows in half precision.
            attention_mask = None if takes_window(key, value) else window_mask(query, window)
        return _kept(query, key, value, attention_mask).transpose(1, 2).contiguous(), None

    register_attention(ATTENTION, attend)
    return ATTENTION


def _kept(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the result of fused attention, which is not computed, and keep what its kernels keep."""
    if query.size(1) != key.size(1) and (mask is not None or not takes_grouped_heads(key, value)):
        key, value = repeated_heads(query, key, value)
    # In each layer, PyTorch turns a mask into numbers that are added to the scores.
    bias = None if mask is None else seen_bias(mask.to(query.dtype), query, key)
    out: Tensor = _attention_operator()(query, key, value, bias)[0]
    return out


def _only_gpus_fuse(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, grouped: bool
) -> bool:
    """Whether PyTorch's kernels on a GPU keep something else for a call than those on a CPU, which is run."""
    if query.dim() != HEADS_DIMENSIONS:
        return False
    if query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return mask is not None or dropout > 0 or query.size(-1) != value.size(-1)
    return grouped and mask is None and takes_grouped_heads(key, value)


@cache
def fused_calls() -> Callable[[torch.dtype | None], Any]:
    """Return a context in which calls of fused attention keep what its kernels on a GPU keep.

    Those on a CPU compute with dropout, with grouped heads, and with values of another width than keys as
    plain products, and have no sums of a mask's tiles.
    The context is given the precision to which autocast casts tensors; None without autocast.
    """
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    names = ("query", "key", "value", "attn_mask")

    class FusedCalls(TorchFunctionMode):
        def __init__(self, half: torch.dtype | None) -> None:
            super().__init__()
            self.half = half

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if func is F.scaled_dot_product_attention:
                given = {**dict(zip((*names, "dropout_p"), args, strict=False)), **(kwargs or {})}
                tensors = [self._cast(given.get(name)) for name in names]
                if _only_gpus_fuse(
                    *tensors, dropout=given.get("dropout_p", 0.0), grouped=given.get("enable_gqa", False)
                ):
                    return _kept(*tensors)
            return func(*args, **(kwargs or {}))

        def _cast(self, tensor: Tensor | None) -> Any:
            casts = tensor is not None and tensor.is_floating_point() and self.half is not None
            return tensor.to(self.half) if tensor is not None and casts else tensor

    return FusedCalls


@cache
def _attention_operator() -> Any:
    """Return an operator that has the results of fused attention, and keeps what its kernels keep."""
    three, result = "Tensor query, Tensor key, Tensor value", "(Tensor, Tensor, Tensor)"
    forward = empty_operator("kept_attention", f"({three}, Tensor? bias) -> (Tensor, Tensor)", _attended)
    backward = empty_operator(
        "kept_attention_backward", f"(Tensor gradient, {three}, Tensor[] kept) -> {result}", _gradients
    )
    biased_backward = empty_operator(
        "kept_biased_attention_backward",
        f"(Tensor gradient, {three}, Tensor[] kept, Tensor bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _biased_gradients,
    )

    def save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.biased = inputs[-1] is not None
        ctx.save_for_backward(*(tensor for tensor in (*inputs, *output) if tensor is not None))

    def run_backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        if not ctx.biased:
            return *backward(gradient, query, key, value, kept), None
        bias, *kept = kept
        *three, of_bias, _ = biased_backward(gradient, query, key, value, kept, bias)
        return *three, of_bias[..., : bias.shape[-1]] if ctx.needs_input_grad[3] else None

    forward.register_autograd(run_backward, setup_context=save)
    return forward


def _attended(query: Tensor, _key: Tensor, value: Tensor, _bias: Tensor | None) -> tuple[Tensor, ...]:
    """Return the result of fused attention, and the logarithms of its sums, without contents."""
    import torch

    samples, heads, length, _ = query.shape
    out = query.new_empty(samples, length, heads, value.shape[-1]).transpose(1, 2)
    return out, query.new_empty(samples, heads, length, dtype=torch.float32)


def _gradients(
    _gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, _kept: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    import torch

    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _biased_gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, kept: Sequence[Tensor], bias: Tensor
) -> tuple[Tensor, ...]:
    three = _gradients(gradient, query, key, value, kept)
    return *three, gradient_of_bias(bias), workspace(query, value)

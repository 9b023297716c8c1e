"""Attention that needs no mask, registered with transformers under names of its own.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch import Tensor


def attention_implementation(kernels: bool) -> Literal["eager", "bench_unmasked"]:
    """The `attn_implementation` to build a model with: with the method "kernels", or without it."""
    return unmasked_attention() if kernels else "eager"


@cache
def unmasked_attention() -> Literal["bench_unmasked"]:
    """Register PyTorch's fused attention, called without a mask. Returns its name.

    Under torch.compile, transformers 5.17 passes SDPA a mask of every pair of positions, causal or not,
    which excludes the flash kernels; without compilation it waits for the device to learn whether sequences
    are packed (`find_packed_sequence_indices`, `is_tracing` in masking_utils.py). For a name that has no
    registered mask it does neither: transformers' documentation, "Attention Interface".
    """
    import torch.nn.functional as F

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, scale: Any, dropout: float) -> Tensor:
        # Rotary embeddings return fp32; autocast would lower them here too.
        query, key = query.to(value.dtype), key.to(value.dtype)
        options = {"is_causal": module.is_causal, "enable_gqa": query.size(1) != key.size(1)}
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale, **options)

    _register("bench_unmasked", attend)
    return "bench_unmasked"


@cache
def flex_attention() -> Literal["bench_flex"]:
    """Register PyTorch's FlexAttention, called without a mask. Returns its name. Fast only if compiled."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    roomy = (
        torch.cuda.is_available()
        and torch.cuda.get_device_properties().shared_memory_per_block_optin
        >= torch_inside.FLEX_MIN_SHARED_BYTES
    )

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, scale: Any, dropout: float) -> Any:
        assert not dropout and not module.is_causal
        tuned = roomy and query.size(-1) <= torch_inside.FLEX_MAX_HEAD_WIDTH
        options = torch_inside.FLEX_BACKWARD_OPTIONS if tuned else None
        return flex_attention(query, key, value, scale=scale, kernel_options=options)

    _register("bench_flex", attend)
    return "bench_flex"


def _register(name: str, attend: Callable[[Any, Tensor, Tensor, Tensor, Any, float], Any]) -> None:
    """Let transformers call `attend` under this name, with query, key, value, scale and dropout."""
    from transformers import AttentionInterface

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[Tensor, None]:
        assert attention_mask is None, "nothing is padded here"
        return attend(module, query, key, value, scaling, dropout).transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attention)

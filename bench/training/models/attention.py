"""PyTorch's attention kernels, registered with transformers under names of their own.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bench.training.vendor import torch_inside, transformers_inside

if TYPE_CHECKING:
    from torch import Tensor


def attention_implementation(kernels: bool) -> Literal["eager", "bench_fused"]:
    """Return the `attn_implementation` for a model that is built with the method "kernels", or without."""
    return fused_attention() if kernels else "eager"


@cache
def fused_attention() -> Literal["bench_fused"]:
    """Register PyTorch's fused attention, called without a mask if no mask is needed; return its name.

    Flash and cuDNN attention take no mask, and with a mask, K and V of grouped heads are repeated. Samples
    are neither padded nor packed, so that causal and full attention need no mask. A window shorter than the
    sample, and any other pattern, keeps the mask that transformers builds.
    """
    import torch.nn.functional as F
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        # Rotary embeddings return fp32; autocast too would lower queries and keys at this point.
        query, key = query.to(value.dtype), key.to(value.dtype)
        causal = attends_causally(module, is_causal)
        if attention_mask is not None or more.get("position_bias") is not None:
            options = {"dropout": dropout, "scaling": scaling, "is_causal": causal} | more
            out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
            return out, None
        grouped = query.size(1) != key.size(1)
        if grouped and not takes_grouped_heads(key, value):
            key, value, grouped = *repeated_heads(query, key, value), False
        out = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
        )
        return out.transpose(1, 2).contiguous(), None

    register_attention("bench_fused", attend)
    return "bench_fused"


def register_attention(name: str, attend: Callable[..., tuple[Tensor, None]]) -> None:
    """Let transformers call `attend` under a name, with its own mask only if a mask is needed."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(*given: Any, **more: Any) -> Tensor | None:
        return None if _needs_no_mask(**more) else sdpa_mask(*given, **more)

    transformers_inside.expect_no_packed_samples()
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def attends_causally(module: Any, is_causal: bool | None) -> bool:
    """Whether positions see no later ones: as the call says, else as the module says."""
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def takes_grouped_heads(key: Tensor, value: Tensor) -> bool:
    """Whether fused kernels take fewer heads of keys than of queries; if not, plain attention would run.

    Flash and cuDNN attention take them in half precision, for heads of one width up to 256 elements.
    """
    return bool(key.element_size() == 2 and key.size(-1) == value.size(-1) <= 256)


def repeated_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each head of keys and values for the heads of queries that share it."""
    times = query.size(1) // key.size(1)
    return key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)


def _needs_no_mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **_: Any,
) -> bool:
    """Whether `is_causal` says as much as the mask that transformers asks for with these arguments.

    transformers' own `sdpa_mask` decides alike, except that it always builds the mask while it is traced.
    """
    window_hides_some = local_size is not None and local_size < kv_length
    may_skip = allow_is_causal_skip or allow_is_bidirectional_skip
    return may_skip and attention_mask is None and q_length == kv_length and not window_hides_some


@cache
def flex_attention() -> Literal["bench_flex"]:
    """Register PyTorch's FlexAttention without a mask, fast only if compiled; return its name."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from transformers import AttentionInterface

    roomy = (
        torch.cuda.is_available()
        and torch.cuda.get_device_properties().shared_memory_per_block_optin
        >= torch_inside.FLEX_MIN_SHARED_BYTES
    )

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[Tensor, None]:
        assert attention_mask is None and not dropout and not module.is_causal
        tuned = roomy and query.size(-1) <= torch_inside.FLEX_MAX_HEAD_WIDTH
        options = torch_inside.FLEX_BACKWARD_OPTIONS if tuned else None
        out = flex_attention(query, key, value, scale=scaling, kernel_options=options)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("bench_flex", attend)
    return "bench_flex"

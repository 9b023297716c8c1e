"""PyTorch's attention kernels, registered with transformers under names of their own.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bench.training.objectives.documents import documents_of
from bench.training.vendor import torch_inside, transformers_inside
from bench.training.vendor.torch_inside import Window

FLASH_MAJOR = 8  # compute capability from which FlashAttention runs

if TYPE_CHECKING:
    from torch import Tensor


def attention_implementation(*, kernels: bool) -> Literal["eager", "bench_fused"]:
    """Return the `attn_implementation` for a model that is built with the method "kernels", or without."""
    return fused_attention() if kernels else "eager"


def fused_attention() -> Literal["bench_fused"]:
    """Return the name of PyTorch's fused attention, called without a mask if no mask is needed.

    For a model that is built now: the passes of an earlier one with documents let transformers look for them.
    """
    transformers_inside.expect_no_packed_samples()
    return register_fused_attention()


@cache
def register_fused_attention() -> Literal["bench_fused"]:
    """Register fused attention; return its name.

    Flash and cuDNN attention take no mask, and with a mask, K and V of grouped heads are repeated. Samples
    are neither padded nor packed, so that causal and full attention need no mask. A window shorter than the
    sample needs none in FlashAttention, which runs in half precision on a GPU. Any other pattern keeps the
    mask that transformers builds.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    in_windows = torch.cuda.is_available() and torch.cuda.get_device_properties().major >= FLASH_MAJOR

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
        if (bias := more.get("position_bias")) is not None:
            more["position_bias"] = in_rows(bias)
        ends, sliding = ends_of(attention_mask), more.get("sliding_window")
        window = window_of(attention_mask) if ends is None else document_window(query, sliding)
        if window is not None:
            if in_windows and not dropout and (ends is not None or bias is None) and takes_window(key, value):
                out = torch_inside.attention_in_window(query, key, value, window, scaling, ends)
                return out.transpose(1, 2).contiguous(), None
            whole = ends is None
            attention_mask = window_mask(query, window) if whole else document_mask(query, ends, sliding)
        if attention_mask is not None or bias is not None:
            options = {"dropout": dropout, "scaling": scaling, "is_causal": causal} | more
            out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
            return out, None
        return _without_mask(query, key, value, dropout, scaling, causal=causal), None

    register_attention("bench_fused", attend)
    return "bench_fused"


def _without_mask(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None, *, causal: bool
) -> Tensor:
    """Attend to all positions, or to all earlier ones; return [samples, positions, heads, width]."""
    import torch.nn.functional as F

    grouped = query.size(1) != key.size(1)
    if grouped and not takes_grouped_heads(key, value):
        key, value, grouped = *repeated_heads(query, key, value), False
    out = F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2).contiguous()


def register_attention(name: str, attend: Callable[..., tuple[Tensor, None]]) -> None:
    """Let transformers call `attend` under a name, with its own mask only if a mask is needed.

    In place of the mask of a window, `attend` gets a tensor from which `window_of` reads the window.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(*given: Any, **more: Any) -> Tensor | None:
        if _needs_no_mask(**more):
            return None
        window = _window_alone(**more)
        return sdpa_mask(*given, **more) if window is None else _told(window, more["device"])

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def _told(window: Window, device: Any) -> Tensor:
    """Return a tensor without elements whose shape tells the window: compiled code knows all shapes."""
    import torch

    left, right = window
    return torch.empty(0, 1, left + 1, right + 1, device=device)


def window_of(attention_mask: Tensor | None) -> Window | None:
    """Return the window that stands in place of a mask; None for a mask, or none."""
    if attention_mask is None or attention_mask.dim() != 4 or attention_mask.size(0):
        return None
    return attention_mask.size(2) - 1, attention_mask.size(3) - 1


def ends_of(attention_mask: Tensor | None) -> Tensor | None:
    """Return the ends of documents [samples, documents] that stand in place of a mask; None for a mask."""
    if attention_mask is None or attention_mask.dim() != 4 or attention_mask.dtype.is_floating_point:
        return None
    holds_ends = attention_mask.dtype.itemsize > 1 and attention_mask.shape[1:3] == (1, 1)
    return attention_mask[:, 0, 0] if holds_ends else None


def document_window(query: Tensor, sliding_window: int | None) -> Window:
    """Return the window in which documents attend: backwards, as far as the window of a layer reaches."""
    return (sliding_window or query.size(2)) - 1, 0


def document_mask(query: Tensor, ends: Tensor, sliding_window: int | None) -> Tensor:
    """Return the mask of documents [samples, 1, length, length]: true where a position attends."""
    documents = documents_of(ends, query.size(2))
    same: Tensor = documents[:, None, :, None] == documents[:, None, None, :]
    return same & window_mask(query, document_window(query, sliding_window))


def takes_window(key: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes heads of this width and precision."""
    width = value.size(-1)
    return bool(value.element_size() == 2 and key.size(-1) == width <= 256 and width % 8 == 0)


def window_mask(query: Tensor, window: Window) -> Tensor:
    """Return the mask of a window as transformers builds it: true where a position attends."""
    import torch

    (left, right), (samples, _, length, _) = window, query.shape
    positions = torch.arange(length, device=query.device)
    ahead = positions[None, :] - positions[:, None]
    return ((ahead <= right) & (ahead >= -left)).expand(samples, 1, length, length)


def _window_alone(
    *,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    **_: Any,
) -> Window | None:
    """Return the window if the mask that transformers asks for with these arguments is one, and nothing else.

    Code that reads a mask, or joins two of them, asks never to skip it, and gets it. transformers itself asks
    so where the mask has further functions (`use_vmap`). `mask_function` says for two positions whether the
    first attends to the second. Its answers for some rows show the window; while it is traced it gives no
    answers, so that the mask is built.
    """
    import torch

    read_by_code = not (allow_is_causal_skip or allow_is_bidirectional_skip or use_vmap)
    if (
        local_size is None
        or read_by_code
        or attention_mask is not None
        or q_length != kv_length
        or torch.compiler.is_compiling()
    ):
        return None
    with torch_inside.real_tensors(), torch.device("cpu"):
        rows = torch.tensor([0, q_length // 2, q_length // 2 + 1, q_length - 1])[:, None]
        columns, zero = torch.arange(q_length)[None, :], torch.zeros((), dtype=torch.long)
        try:
            seen = mask_function(zero, zero, rows, columns).expand(len(rows), q_length)
        except RuntimeError:  # it reads tensors of the batch, on another device
            return None
        return _window_in(seen, columns - rows)


def _window_in(seen: Tensor, ahead: Tensor) -> Window | None:
    """Return the window if every row sees the positions that are inside of it; None if they see others."""
    if not seen.any():
        return None
    left, right = (int((sign * ahead)[seen].max()) for sign in (-1, 1))
    in_window = (ahead <= right) & (ahead >= -left)
    return (left, right) if left >= 0 <= right and bool((seen == in_window).all()) else None


def in_rows(bias: Tensor) -> Tensor:
    """Return a position bias whose rows lie in memory one number beside the next.

    Fused kernels read no other: T5 makes its bias by moving the dimension of heads from the end, and would
    get plain attention in fp32, which keeps the scores of all pairs of positions.
    """
    return bias if bias.stride(-1) == 1 else bias.contiguous()


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

    transformers' own `sdpa_mask` decides alike, except that it always builds the mask while it is traced or
    recorded as a CUDA graph. Lengths differ where a decoder reads an encoder's output.
    """
    window_hides_some = local_size is not None and local_size < kv_length
    if attention_mask is not None or window_hides_some:
        return False
    return allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == kv_length)

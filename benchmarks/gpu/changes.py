"""Changes for would_it_pay.py: optimisations that bench does not contain and that may be worth adding.

Each is a context manager that is active while a model is built and trains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

import torch
import torch._inductor.config
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.training.objectives import Objective
from bench.training.vendor import torch_inside


@contextmanager
def flash_attention_4() -> Iterator[None]:
    """Use FlashAttention-4 for scaled_dot_product_attention instead of every other kernel."""
    import flash_attn.cute.interface as newest
    from torch.nn.attention import _fa4

    # PyTorch expects two results of the forward pass and three of the backward pass; later betas return more.
    adapter = ModuleType("bench_fa4")
    adapter._flash_attn_fwd = lambda *args, **kwargs: newest._flash_attn_fwd(*args, **kwargs)[:2]  # type: ignore[attr-defined]
    adapter._flash_attn_bwd = lambda *args, **kwargs: newest._flash_attn_bwd(*args, **kwargs)[:3]  # type: ignore[attr-defined]
    sys.modules[adapter.__name__] = adapter
    registered = _fa4.register_flash_attention_fa4(adapter.__name__)
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            yield
    finally:
        registered.remove()


@contextmanager
def loss_in_triton() -> Iterator[None]:
    """Use Triton kernels for cross entropy; they keep the gradient of the logits beside the logits."""
    from loss_kernels import cross_entropy  # imports Triton

    plain = Objective.loss
    Objective.loss = lambda _aim, answer, labels: cross_entropy(answer, labels)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Objective.loss = plain  # type: ignore[method-assign]


@contextmanager
def parts_together() -> Iterator[None]:
    """Leave the concatenation of computed parts to the compiler, as before `compute_parts_apart`."""
    from torch._inductor import lowering

    torch_inside.compute_parts_apart()
    operator, tag = torch.ops.aten.cat.default, torch.compiler.config.cache_key_tag
    plain, apart = torch_inside.compute_parts_apart, lowering.lowerings[operator]
    lowering.lowerings[operator] = apart.together
    torch.compiler.config.cache_key_tag = tag + "+parts-together"
    torch_inside.compute_parts_apart = lambda: None
    try:
        yield
    finally:
        torch_inside.compute_parts_apart = plain
        torch.compiler.config.cache_key_tag = tag
        lowering.lowerings[operator] = apart


def padding(**settings: bool) -> Callable[[], AbstractContextManager[None]]:
    """Return a change of the settings by which the compiler pads products with rows of odd length."""
    return lambda: torch._inductor.config.patch(settings)


CHANGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "flash-attention-4": flash_attention_4,
    "loss-in-triton": loss_in_triton,
    "never-padded": padding(shape_padding=False),
    "padded": padding(force_shape_pad=True),
    "parts-together": parts_together,
}

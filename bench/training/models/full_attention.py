"""Attention of all positions to all others, which kernels compute from queries, keys and values alone.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from bench.training.models.attention import attends_causally, register_attention
from bench.training.models.model import Model
from bench.training.models.probe import close, model_call, on_tiny_input
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

MIN_HEAD_WIDTH = 16  # elements: what tensor cores multiply at once
OWN_HEAD_WIDTHS = (16, 32, 64)  # that the kernels of bench/training/triton/attention.py take


class AsksForMore(LookupError):
    """A call of attention asks for more than a kernel is given: a mask, a bias, dropout."""


def require_full_attention(module: nn.Module, model: Model, attend: Callable[..., Any]) -> None:
    """Raise LookupError unless `attend` can take all calls of attention that transformers makes by its name.

    The model runs on a tiny input, once as it is built and twice with attention that watches its calls:
    `attend_to_all` or `attend_within`.
    """
    with on_tiny_input(module, model) as answer, model_call(AsksForMore):
        expected = answer()
        found, called = _watched(module, answer, attend)
    if not called:
        raise LookupError("no attention of this model is called by its name")
    if not close(found, expected):
        raise LookupError("the model gives another output if all positions see each other")


def _watched(
    module: Any, answer: Callable[[], Tensor], attend: Callable[..., Any]
) -> tuple[Tensor, set[nn.Module]]:
    """Return a model's answer with watched attention, and the modules that called it."""
    import torch

    built, called = module.config._attn_implementation, set[Any]()
    register_attention("bench_watched", partial(attend, called))
    module.set_attn_implementation("bench_watched")
    try:
        found = answer()
        with torch.random.fork_rng():
            for part in called:
                part.training = True  # it alone, so that it says with which dropout it attends
            answer()
    finally:
        module.set_attn_implementation(built)
    return found, called


def attend_to_all(
    called: set[nn.Module],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend without a mask; raise AsksForMore if the call asks for one or for anything else."""
    import torch.nn.functional as F

    called.add(module)
    for reason, found in (
        ("its attention takes a mask", attention_mask is not None),
        ("its positions do not see those that follow", attends_causally(module, is_causal)),
        ("such kernels have no dropout", dropout > 0),
        ("heads share keys and values", query.size(1) != key.size(1)),
        (f"its heads are narrower than {MIN_HEAD_WIDTH}", query.size(-1) < MIN_HEAD_WIDTH),
        *(
            (f"its attention takes {name}", not isinstance(given, bool | str | None))
            for name, given in more.items()
            if name != "position_ids"  # which attention ignores
        ),
    ):
        if found:
            raise AsksForMore(reason)
    out = F.scaled_dot_product_attention(query, key, value, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def attend_within(
    called: set[nn.Module],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *arguments: Any,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend to the same positions without a mask; raise AsksForMore as well if keys are of others."""
    result = attend_to_all(called, module, query, key, value, *arguments, **more)
    if not query.shape == key.shape == value.shape:
        raise AsksForMore("its kernels take as many keys as queries, and values of the same width")
    return result


@cache
def full_attention() -> str:
    """Register attention by the operator of full_attention_operator.py; return its name."""
    from bench.training.models.full_attention_operator import attend

    return _registered("bench_full", attend)


@cache
def flex_attention() -> str:
    """Register PyTorch's FlexAttention without a mask, fast only if compiled; return its name."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    roomy = (
        torch.cuda.is_available()
        and torch.cuda.get_device_properties().shared_memory_per_block_optin
        >= torch_inside.FLEX_MIN_SHARED_BYTES
    )

    def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        tuned = roomy and query.size(-1) <= torch_inside.FLEX_MAX_HEAD_WIDTH
        options = torch_inside.FLEX_BACKWARD_OPTIONS if tuned else None
        out: Any = flex_attention(query, key, value, scale=scaling, kernel_options=options)
        result: Tensor = out.transpose(1, 2).contiguous()
        return result

    return _registered("bench_flex", attend)


def _registered(name: str, attend: Callable[[Tensor, Tensor, Tensor, float | None], Tensor]) -> str:
    """Let transformers call attention of queries, keys, values and a scale by this name; return the name."""

    def by_name(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        assert attention_mask is None and not dropout and not attends_causally(module, is_causal)
        return attend(query, key, value, scaling), None

    register_attention(name, by_name)
    return name

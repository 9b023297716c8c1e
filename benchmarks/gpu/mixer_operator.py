"""mamba-ssm's kernel for a mixer of Mamba 2 as an operator of torch, which a compiled graph can contain.

bench calls the kernel outside of compiled code, so that a block's graph ends there: tensors on both sides are
written, and kept (docs/measurements.md, "Hybrids of attention and Mamba 2").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bench.training.vendor.transformers_inside import precision_of_products

GIVEN = (
    "zxbcdt", "conv1d_weight", "conv1d_bias", "dt_bias", "A", "D", "rmsnorm_weight", "outproj_weight",
    "outproj_bias",
)  # fmt: skip
# What the kernel's autograd function saves, in order. What is not given it has computed, or it is None.
SAVED = (
    "zxbcdt", "conv1d_weight", "conv1d_bias", "scanned", "A", "D", "dt_bias", "initial_states", "seq_idx",
    "rmsnorm_weight", "deviations", "outproj_weight", "outproj_bias",
)  # fmt: skip
COMPUTED = ("scanned", "deviations")
# What the function's backward pass returns, in the order of the arguments of its forward pass.
GRADIENTS = ("zxbcdt", "conv1d_weight", "conv1d_bias", "dt_bias", "A", "D")
OPTIONS = (
    "chunk_size", "dt_limit", "activation", "rmsnorm_eps", "headdim", "ngroups", "norm_before_gate",
)  # fmt: skip
_uses: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []  # which tensors are given, and the options


def mixer_operator() -> Callable[..., Tensor]:
    """Return a function like mamba-ssm's `mamba_split_conv1d_scan_combined` that torch.compile looks into."""
    operator = _operator()

    def mix(
        zxbcdt: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Tensor | None,
        dt_bias: Tensor,
        A: Tensor,  # noqa: N803 (the name in the mixers' calls)
        **more: Any,
    ) -> Tensor:
        precision = precision_of_products(zxbcdt, more["outproj_weight"])
        tensors = more | {
            "zxbcdt": zxbcdt.to(precision), "conv1d_weight": conv1d_weight, "conv1d_bias": conv1d_bias,
            "dt_bias": dt_bias, "A": A,
        }  # fmt: skip
        for name in ("outproj_weight", "outproj_bias"):
            if tensors.get(name) is not None:
                tensors[name] = tensors[name].to(precision)
        given = tuple(name for name in GIVEN if tensors.get(name) is not None)
        use = _number_of(given, {name: more[name] for name in OPTIONS if name in more})
        result: Tensor = operator([tensors[name] for name in given], use)[0]
        return result

    return mix


@torch.compiler.assume_constant_result
def _number_of(given: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Return the number by which the operator finds what it is given, and its options."""
    if (given, options) not in _uses:
        _uses.append((given, options))
    return _uses.index((given, options))


def _function() -> Any:
    from mamba_ssm.ops.triton.ssd_combined import MambaSplitConv1dScanCombinedFn

    return MambaSplitConv1dScanCombinedFn


@cache
def _operator() -> Callable[..., Sequence[Tensor]]:
    forward = torch.library.custom_op(
        "bench_gpu::mixer", _mixed, mutates_args=(), schema="(Tensor[] given, int use) -> Tensor[]"
    )
    forward.register_fake(_forms)
    backward = torch.library.custom_op(
        "bench_gpu::mixer_backward",
        _gradients,
        mutates_args=(),
        schema="(Tensor gradient, Tensor[] given, Tensor[] computed, int use) -> Tensor[]",
    )
    backward.register_fake(lambda _gradient, given, _computed, _use: [*map(torch.empty_like, given)])

    def save(ctx: Any, inputs: tuple[Sequence[Tensor], int], output: Sequence[Tensor]) -> None:
        given, ctx.use = inputs
        ctx.given = len(given)
        ctx.save_for_backward(*given, *output[1:])

    def run_backward(ctx: Any, of_results: Sequence[Tensor]) -> tuple[list[Tensor], None]:
        given, computed = list(ctx.saved_tensors[: ctx.given]), list(ctx.saved_tensors[ctx.given :])
        return backward(of_results[0], given, computed, ctx.use), None

    forward.register_autograd(run_backward, setup_context=save)
    operator: Callable[..., Sequence[Tensor]] = forward
    return operator


def _mixed(given: Sequence[Tensor], use: int) -> list[Tensor]:
    """Return a mixer's result, the scan's result, and with a norm its deviations."""
    names, options = _uses[use]
    tensors, ctx = dict(zip(names, given, strict=True)), SimpleNamespace()
    ctx.save_for_backward = lambda *saved: setattr(ctx, "saved_tensors", saved)
    with torch.autocast("cuda", enabled=False):
        result = _function().forward(
            ctx,
            *(tensors.get(name) for name in GRADIENTS),
            **options,
            **{name: tensors.get(name) for name in GIVEN if name not in GRADIENTS},
        )
    saved = dict(zip(SAVED, ctx.saved_tensors, strict=True))
    return [result.contiguous(), *(saved[name].contiguous() for name in COMPUTED if saved[name] is not None)]


def _forms(given: Sequence[Tensor], use: int) -> list[Tensor]:
    names, options = _uses[use]
    tensors = dict(zip(names, given, strict=True))
    projected, heads = tensors["zxbcdt"], tensors["D"].numel()
    samples, length, _ = projected.shape
    result = projected.new_empty(samples, length, tensors["outproj_weight"].size(0))
    scanned = projected.new_empty(samples, length, heads, options["headdim"])
    if "rmsnorm_weight" not in tensors:
        return [result, scanned]
    rows = samples * length * options.get("ngroups", 1)
    return [result, scanned, projected.new_empty(rows, dtype=torch.float32)]


def _gradients(
    gradient: Tensor, given: Sequence[Tensor], computed: Sequence[Tensor], use: int
) -> list[Tensor]:
    names, options = _uses[use]
    tensors = dict(zip(names, given, strict=True))
    saved = tensors | dict(zip(COMPUTED, computed, strict=False))
    ctx = SimpleNamespace(
        saved_tensors=tuple(saved.get(name) for name in SAVED),
        return_final_states=False,
        outproj_weight_dtype=tensors["outproj_weight"].dtype,
        **{"dt_limit": (0.0, float("inf")), "activation": "silu", "rmsnorm_eps": 1e-6, "ngroups": 1,
           "norm_before_gate": True} | options,
        _fwd_used_autocast=False,
        _dtype=torch.get_autocast_dtype("cuda"),
    )  # fmt: skip
    found = _function().backward(ctx, gradient.contiguous())
    places = [*GRADIENTS, *("" for _ in range(6)), "rmsnorm_weight", "", "outproj_weight", "outproj_bias"]
    by_name = dict(zip(places, found, strict=False))
    return [
        by_name[name].to(tensor.dtype).view_as(tensor).contiguous() if by_name[name] is not None
        else torch.zeros_like(tensor)
        for name, tensor in tensors.items()
    ]  # fmt: skip

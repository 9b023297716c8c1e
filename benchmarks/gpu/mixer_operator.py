"""mamba-ssm's kernel for a mixer of Mamba 2 as two operators of torch, which a compiled graph can contain.

bench calls the kernel outside of compiled code, so that a block's graph ends there: tensors on both sides are
written, and kept (docs/measurements.md, "Hybrids of attention and Mamba 2"). Imports torch and mamba-ssm only
when called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench.base.errors import EnvironmentCannot
from bench.training.vendor.transformers_inside import precision_of_products

if TYPE_CHECKING:
    from torch import Tensor

# Arguments of both operators, by the names that mamba-ssm's function has for them.
TENSORS = (
    "Tensor zxbcdt, Tensor conv1d_weight, Tensor? conv1d_bias, Tensor dt_bias, Tensor A, Tensor D, "
    "Tensor? rmsnorm_weight, Tensor outproj_weight, Tensor? outproj_bias"
)
OPTIONS = (
    "int chunk_size, float[] dt_limit, str? activation, float? rmsnorm_eps, int headdim, int ngroups, "
    "bool norm_before_gate"
)
NAMES = tuple(argument.split()[1] for argument in f"{TENSORS}, {OPTIONS}".split(", "))
TENSOR_NAMES = NAMES[: len(TENSORS.split(", "))]
MULTIPLIED = ("zxbcdt", "outproj_weight", "outproj_bias")  # in the precision of products
# Arguments of the forward pass of mamba-ssm's autograd function. A newer version may have more of them,
# with defaults; the backward pass returns something for each.
ARGUMENTS = (
    "zxbcdt", "conv1d_weight", "conv1d_bias", "dt_bias", "A", "D", "chunk_size", "initial_states", "seq_idx",
    "dt_limit", "return_final_states", "activation", "rmsnorm_weight", "rmsnorm_eps", "outproj_weight",
    "outproj_bias", "headdim", "ngroups", "norm_before_gate",
)  # fmt: skip
# Tensors that the forward pass saves, in this order: arguments of it, and two that it computes, the scan's
# result and the deviations of the norm. Some may be None.
SAVED = (
    "zxbcdt", "conv1d_weight", "conv1d_bias", "scanned", "A", "D", "dt_bias", "initial_states", "seq_idx",
    "rmsnorm_weight", "deviations", "outproj_weight", "outproj_bias",
)  # fmt: skip


class Context:
    """Takes the tensors that a forward pass saves, and the attributes that it sets.

    Nothing in it refers to itself. A reference cycle would hold the tensors of each mixer until Python looks
    for cycles, which in compiled code happens after many mixers.
    """

    saved: tuple[Tensor | None, ...]

    def save_for_backward(self, *saved: Tensor | None) -> None:
        self.saved = saved


def mixer_operator() -> Callable[..., Tensor]:
    """Return a function for a mixer of Mamba 2, from its first product on, as an operator of torch.

    The function takes what mamba-ssm's `mamba_split_conv1d_scan_combined` takes, and leaves out, as
    transformers' wrapper does, what that does not take. The operator gets what is multiplied in the precision
    of products, as Mamba 2 itself passes it: Falcon-H1 multiplies it by a buffer in fp32 before. It keeps
    for the backward pass what mamba-ssm's function keeps. Raises ImportError if mamba-ssm cannot be imported,
    and EnvironmentCannot if its function has another form.

    Relies on: `MambaSplitConv1dScanCombinedFn` of mamba-ssm 2.3, whose passes are called with a context of
    bench's own: the arguments of its forward pass, the tensors that this saves, the attributes that its
    backward pass reads, which have the names of arguments, and two attributes that torch's `custom_bwd`
    reads. Why: mamba-ssm has no operators, so that a compiled graph would end at the kernel, and tensors on
    both sides would be written and kept; under torch.compile, transformers' wrapper would run the plain code
    until torch 2.14 (https://github.com/pytorch/pytorch/issues/176347).
    Remove when mamba-ssm's own function is an operator of torch, and the oldest supported torch is 2.14.
    """
    defaults, operator = _defaults(_function()), _operator()
    others = tuple(name for name in defaults if name not in NAMES)

    def mix(*given: Any, **more: Any) -> Tensor:
        named = {**defaults, **dict(zip(ARGUMENTS, given, strict=False)), **more}
        for name in others:
            if named[name] is not defaults[name]:
                raise NotImplementedError(f"bench's operator for a mixer of Mamba 2 takes no {name}")
        precision = precision_of_products(named["zxbcdt"], named["outproj_weight"])
        lowered = {name: named[name].to(precision) for name in MULTIPLIED if named[name] is not None}
        result: Tensor = operator(*((named | lowered)[name] for name in NAMES))[0]
        return result

    return mix


def _function() -> Any:
    from mamba_ssm.ops.triton.ssd_combined import MambaSplitConv1dScanCombinedFn

    return MambaSplitConv1dScanCombinedFn


@cache
def _defaults(function: Any) -> Mapping[str, Any]:
    """Return the defaults of a function's forward pass; EnvironmentCannot if its form is not known."""
    import mamba_ssm

    _, *parameters = inspect.signature(function.forward).parameters.values()
    known, further = parameters[: len(ARGUMENTS)], parameters[len(ARGUMENTS) :]
    required = [one for one in further if one.default is one.empty]
    if tuple(one.name for one in known) != ARGUMENTS or required:
        version = getattr(mamba_ssm, "__version__", "of an unknown version")
        raise EnvironmentCannot(
            f"mamba-ssm {version} computes mixers of Mamba 2 by a function with other arguments than bench "
            f"knows: {', '.join(one.name for one in parameters)}",
            advice='install mamba-ssm 2.3, or leave the method "kernels" out',
        )
    return {one.name: one.default for one in parameters if one.default is not one.empty}


@cache
def _operator() -> Callable[..., Sequence[Tensor]]:
    """Return the operator of the forward pass, whose gradients are another operator."""
    import torch

    given, computed = f"{TENSORS}, {OPTIONS}", "Tensor scanned, Tensor deviations"
    # The compiler of torch 2.11 writes a product with padding between its rows if they are no multiple of 128
    # bytes. By default it would copy such a product to close the gaps; mamba-ssm reads any strides.
    tags = (torch.Tag.needs_fixed_stride_order,)
    forward = torch.library.custom_op(
        "bench::mixer", _mixed, mutates_args=(), schema=f"({given}) -> (Tensor, Tensor, Tensor)", tags=tags
    )
    forward.register_fake(_empty_results)
    backward = torch.library.custom_op(
        "bench::mixer_backward",
        _gradients,
        mutates_args=(),
        schema=f"(Tensor gradient, {computed}, {given}) -> Tensor[]",
        tags=tags,
    )
    backward.register_fake(lambda *given: [_empty(tensor) for tensor in _tensors(given[-len(NAMES) :])])

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)  # of what is computed for the backward pass alone
        ctx.options = inputs[len(TENSOR_NAMES) :]
        ctx.save_for_backward(*output[1:], *inputs[: len(TENSOR_NAMES)])

    def run_backward(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        scanned, deviations, *tensors = ctx.saved_tensors
        found = iter(backward(gradient, scanned, deviations, *tensors, *ctx.options))
        of_tensors = (None if tensor is None else next(found) for tensor in tensors)
        return *of_tensors, *(None for _ in ctx.options)

    forward.register_autograd(run_backward, setup_context=save)
    operator: Callable[..., Sequence[Tensor]] = forward
    return operator


def _tensors(given: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that are given, in the order of the operators' arguments."""
    return [tensor for tensor in given[: len(TENSOR_NAMES)] if tensor is not None]


def _mixed(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mixer's result, the scan's result, and the deviations of the norm, none without a norm."""
    import torch

    named, ctx = dict(zip(NAMES, given, strict=True)), Context()
    with torch.autocast(named["zxbcdt"].device.type, enabled=False):
        result: Tensor = _function().forward(ctx, **named)
    saved = dict(zip(SAVED, ctx.saved, strict=True))
    deviations = saved["deviations"]
    if deviations is None:
        deviations = result.new_empty(0, dtype=torch.float32)
    return result.contiguous(), saved["scanned"].contiguous(), deviations


def _empty_results(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors without contents in the forms of the results of `_mixed`."""
    import torch

    named = dict(zip(NAMES, given, strict=True))
    entry, groups = named["zxbcdt"], named["ngroups"]
    samples, length, _ = entry.shape
    rows = 0 if named["rmsnorm_weight"] is None else samples * length * groups
    return (
        entry.new_empty(samples, length, named["outproj_weight"].size(0)),
        entry.new_empty(samples, length, named["D"].size(0), named["headdim"]),
        entry.new_empty(rows, dtype=torch.float32),
    )


def _gradients(gradient: Tensor, scanned: Tensor, deviations: Tensor, *given: Any) -> list[Tensor]:
    """Return the gradients of the tensors that are given."""
    import torch

    function, named = _function(), dict(zip(NAMES, given, strict=True))
    has_norm = named["rmsnorm_weight"] is not None
    saved = named | {"scanned": scanned, "deviations": deviations if has_norm else None}
    ctx = SimpleNamespace(
        **{**_defaults(function), **{name: named[name] for name in NAMES[len(TENSOR_NAMES) :]}},
        saved_tensors=tuple(saved.get(name) for name in SAVED),
        _fwd_used_autocast=False,
        _dtype=torch.get_autocast_dtype(gradient.device.type),
    )
    found = function.backward(ctx, gradient.contiguous())
    names = inspect.signature(function.forward).parameters
    by_name = dict(zip([*names][1:], found, strict=True))
    return [
        by_name[name].to(tensor.dtype).view_as(tensor).contiguous()
        for name in TENSOR_NAMES
        if (tensor := named[name]) is not None
    ]


def _empty(tensor: Tensor) -> Tensor:
    """Return a tensor without contents in the form of another one's gradient."""
    import torch

    return torch.empty_like(tensor, memory_format=torch.contiguous_format)

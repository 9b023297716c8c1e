"""Mixers of Mamba 2, alone or beside attention: mamba-ssm computes all but their first product in one kernel.

Parameters and operations are counted on the module without contents, and so are kept bytes, with a stand-in
for the kernel, which has the tensors of mamba-ssm 2.3: ops/triton/ssd_combined.py, the class
MambaSplitConv1dScanCombinedFn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.training.models.footprint import FP32
from bench.training.models.mamba import NO_ADAPTERS
from bench.training.models.mixers import MixersFamily
from bench.training.models.model import Model
from bench.training.models.stand_in import empty_operator
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

LAST_LAYER = "out_proj"  # of a mixer


class Mamba2Mixers(MixersFamily):
    """A type of transformers with mixers of Mamba 2, computed by one kernel from their first product on."""

    packages = ("mamba_ssm", "causal_conv1d")
    fused = "mamba-ssm: convolution, scan, norm and last product of a mixer fused"
    kernels_call_layers = False

    def why_no_kernels(self, model: Model) -> str | None:
        """Return which part of an architecture or of its adapters mamba-ssm's kernel cannot follow."""
        lora = model.recipe.lora
        if lora and any(target.rpartition(".")[2] == LAST_LAYER for target in lora.targets):
            return NO_ADAPTERS
        return super().why_no_kernels(model)

    def mamba_ssm(self) -> Callable[..., Any]:
        """Return mamba-ssm's function for all of a mixer but its first product."""
        return transformers_inside.mamba2_kernel()

    def scanned_states(self, module: nn.Module, model: Model) -> int:
        """Return the states of a sample: each position of a mixer has some for each of its channels."""
        mixers: list[Any] = [part for part in module.modules() if hasattr(part, "ssm_state_size")]
        sizes = ((mixer.num_heads, mixer.head_dim, mixer.ssm_state_size) for mixer in mixers)
        of_a_position: int = sum(heads * width * states for heads, width, states in sizes)
        return model.recipe.units_per_sample * of_a_position

    def stand_ins(self) -> Callable[..., Any]:
        """Return the function that keeps what the kernel keeps."""
        return kept_scan

    def mix_by(self, functions: Callable[..., Any] | None) -> None:
        """Let mixers of this type train by this function in this process, or by plain code."""
        transformers_inside.scan_mamba2_by(self.name, functions)

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build the module, whose scan is plain unless it trains; `build` chooses by what it trains."""
        transformers_inside.evaluate_mamba2_plainly(self.name)
        return super().build_with(model, attention)


def kept_scan(
    projected: Tensor,
    convolution: Tensor,
    convolution_bias: Tensor | None,
    dt_bias: Tensor,
    decay: Tensor,
    *,
    D: Tensor,  # noqa: N803 (the name in Mamba2Mixer's call)
    chunk_size: int,
    rmsnorm_weight: Tensor | None,
    outproj_weight: Tensor,
    outproj_bias: Tensor | None,
    headdim: int,
    ngroups: int,
    **_: Any,
) -> Tensor:
    """Return a tensor like a mixer's result, and keep for the backward pass what the kernel keeps."""
    projected = lowered_alone(projected, transformers_inside.precision_of_products(projected, outproj_weight))
    product = outproj_weight.to(projected.dtype)
    weights = (convolution, convolution_bias, dt_bias, decay, D, rmsnorm_weight, product, outproj_bias)
    given = [weight for weight in weights if weight is not None]
    inner, width = D.numel() * headdim, convolution.shape[0]
    deviations = 0 if rmsnorm_weight is None else ngroups
    sizes = [inner, width, ngroups, chunk_size, D.numel(), product.shape[0], deviations]
    result: Tensor = _operation()(projected, given, sizes)[0]
    return result


def lowered_alone(tensor: Tensor, precision: torch.dtype) -> Tensor:
    """Return a tensor in another precision; no other computation is fused with the conversion.

    A compiled graph ends at the kernel, so that the tensor before is written.
    """
    if tensor.dtype == precision:
        return tensor
    lowered: Tensor = _conversion()(tensor, precision)
    return lowered


def working_bytes(length: int, inner: int, width: int, groups: int, chunk: int, heads: int, half: int) -> int:
    """Return the bytes of a sample that the kernel's backward pass needs beside what it takes and returns.

    It recomputes the result and the convolution, and has the gradients of the convolution, of the scan and of
    the norm. States are in fp32 and in the activations' precision, and so are their gradients.
    """
    chunks, states = -(-length // chunk), (width - inner) // 2 // groups
    positions = length * (half * (3 * inner + 2 * width) + 2 * FP32 * heads)
    return positions + chunks * (2 * (FP32 + half) * inner * states + FP32 * groups * chunk * chunk)


@cache
def _conversion() -> Callable[[Tensor, torch.dtype], Tensor]:
    """Return an operator that writes a tensor in another precision, and its gradient in the tensor's own."""
    converted: Callable[[Tensor, torch.dtype], Tensor]
    converted = empty_operator("kept_conversion", "(Tensor given, ScalarType precision) -> Tensor", _like)

    def save(ctx: Any, inputs: tuple[Tensor, torch.dtype], **_: Any) -> None:
        ctx.precision = inputs[0].dtype

    def run_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return converted(gradient, ctx.precision), None

    converted.register_autograd(run_backward, setup_context=save)  # type: ignore[attr-defined]
    return converted


def _like(given: Tensor, precision: torch.dtype) -> Tensor:
    import torch

    return torch.empty_like(given, dtype=precision)


@cache
def _operation() -> Callable[..., Sequence[Tensor]]:
    """Return an operator that has a mixer's result, and keeps what the kernel keeps."""
    given = "Tensor projected, Tensor[] weights"
    forward = empty_operator(
        "kept_scan", f"({given}, int[] sizes) -> (Tensor, Tensor, Tensor)", _scanned, ends_graph=True
    )
    backward = empty_operator(
        "kept_scan_backward",
        f"(Tensor gradient, {given}, Tensor[] kept, int[] sizes) -> (Tensor, Tensor[], Tensor)",
        _gradients,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        projected, weights, ctx.sizes = inputs
        ctx.save_for_backward(projected, *weights, *output[1:])

    def run_backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, list[Tensor], None]:
        projected, *weights, scanned, deviations = ctx.saved_tensors
        of_projected, of_weights, _ = backward(gradient, projected, weights, [scanned, deviations], ctx.sizes)
        return of_projected, of_weights, None

    forward.register_autograd(run_backward, setup_context=save)
    operator: Callable[..., Sequence[Tensor]] = forward
    return operator


def _scanned(
    projected: Tensor, _weights: Sequence[Tensor], sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mixer's result, the scan's, and the norm's deviations, without contents."""
    import torch

    samples, length, _ = projected.shape
    inner, *_, features, deviations = sizes
    return (
        projected.new_empty(samples, length, features),
        projected.new_empty(samples, length, inner),
        projected.new_empty(samples, length, deviations, dtype=torch.float32),
    )


def _gradients(
    _gradient: Tensor,
    projected: Tensor,
    weights: Sequence[Tensor],
    _kept: Sequence[Tensor],
    sizes: Sequence[int],
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return gradients without contents, and the bytes that the kernel's backward pass takes beside them."""
    import torch

    samples, length, _ = projected.shape
    inner, width, groups, chunk, heads, *_ = sizes
    working = working_bytes(length, inner, width, groups, chunk, heads, projected.element_size())
    in_use = projected.new_empty(samples, working, dtype=torch.uint8)
    return torch.empty_like(projected), [torch.empty_like(weight) for weight in weights], in_use

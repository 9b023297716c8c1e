"""Mamba 2: convolution, scan, norm and last product of a mixer in one kernel of mamba-ssm.

Parameters and operations are counted on the module without contents, and so are kept bytes, with a stand-in
for the kernel, which has the tensors of mamba-ssm 2.3: ops/triton/ssd_combined.py, the class
MambaSplitConv1dScanCombinedFn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bench.training.models.footprint import FP32
from bench.training.models.generic import COMPILED_OR_NOT, TransformersFamily, Ways
from bench.training.models.mamba import importing_kernels, missing_packages
from bench.training.models.model import Has, Model, installed
from bench.training.models.stand_in import empty_operator
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

PACKAGES = ("mamba_ssm", "causal_conv1d")


class Mamba2(TransformersFamily):
    """Mamba 2 of transformers; mamba-ssm's kernels are chosen here and not by transformers."""

    kernels = "mamba-ssm: convolution, scan, norm and last product of a mixer fused"
    kernels_call_layers = False
    kernels_of_attention = False
    slow_without_kernels = True  # the plain scan writes every state of every position
    breaks_graph = "mamba-ssm's kernels break the graph in every block"

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return which of the packages of mamba-ssm is missing, or that they need a GPU."""
        return missing_packages(PACKAGES, device, has)

    def counted_ways(self) -> Ways:
        """Count its memory with and without kernels, each compiled and not: all four differ."""
        return (False, COMPILED_OR_NOT), (True, COMPILED_OR_NOT)

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Choose the scan of all Mamba 2 in this process; EnvironmentCannot if mamba-ssm is broken."""
        with importing_kernels():
            scan = transformers_inside.mamba2_kernel() if kernels else None
        transformers_inside.scan_mamba2_by(scan)
        return super().build_with(model, "eager")

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build the module with transformers' plain scan; with any attention but eager, with the stand-in."""
        transformers_inside.scan_mamba2_by(None if attention == "eager" else kept_scan)
        return super().build_with(model, "eager")

    def build_for_memory(self, model: Model, attention: str) -> nn.Module:
        """Build with the stand-in in place of mamba-ssm's kernel, which need not be installed here."""
        return self.build_with(model, attention)


FAMILY = Mamba2("mamba2")


def kept_scan(
    projected: Tensor,
    convolution: Tensor,
    convolution_bias: Tensor | None,
    dt_bias: Tensor,
    decay: Tensor,
    *,
    D: Tensor,  # noqa: N803 (the name in Mamba2Mixer's call)
    chunk_size: int,
    rmsnorm_weight: Tensor,
    outproj_weight: Tensor,
    outproj_bias: Tensor | None,
    headdim: int,
    ngroups: int,
    **_: Any,
) -> Tensor:
    """Return a tensor like a mixer's result, and keep for the backward pass what the kernel keeps."""
    product = outproj_weight.to(projected.dtype)
    weights = (convolution, convolution_bias, dt_bias, decay, D, rmsnorm_weight, product, outproj_bias)
    given = [weight for weight in weights if weight is not None]
    inner, width = D.numel() * headdim, convolution.shape[0]
    sizes = [inner, width, ngroups, chunk_size, D.numel(), product.shape[0]]
    result: Tensor = _operation()(projected, given, sizes)[0]
    return result


def working_bytes(length: int, inner: int, width: int, groups: int, chunk: int, heads: int, half: int) -> int:
    """Return the bytes of a sample that the kernel's backward pass needs beside what it takes and returns.

    It recomputes the result and the convolution, and has the gradients of the convolution, of the scan and of
    the norm. States are in fp32 and in the activations' precision, and so are their gradients.
    """
    chunks, states = -(-length // chunk), (width - inner) // 2 // groups
    positions = length * (half * (3 * inner + 2 * width) + 2 * FP32 * heads)
    return positions + chunks * (2 * (FP32 + half) * inner * states + FP32 * groups * chunk * chunk)


@cache
def _operation() -> Callable[..., Sequence[Tensor]]:
    """Return an operator that has a mixer's result, and keeps what the kernel keeps."""
    given = "Tensor projected, Tensor[] weights"
    forward = empty_operator("kept_scan", f"({given}, int[] sizes) -> (Tensor, Tensor, Tensor)", _scanned)
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
    inner, _, groups, *_, features = sizes
    return (
        projected.new_empty(samples, length, features),
        projected.new_empty(samples, length, inner),
        projected.new_empty(samples, length, groups, dtype=torch.float32),
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
    inner, width, groups, chunk, heads, _ = sizes
    working = working_bytes(length, inner, width, groups, chunk, heads, projected.element_size())
    in_use = projected.new_empty(samples, working, dtype=torch.uint8)
    return torch.empty_like(projected), [torch.empty_like(weight) for weight in weights], in_use

"""Mixers of Mamba 1 beside attention or norms of their own: two kernels compute their convolution and scan.

Mamba itself has a family file with formulas (mamba.py). Operations of a scan are counted by that formula.
Kept bytes are counted with stand-ins for the kernels, which have the tensors of causal-conv1d 1.7
(causal_conv1d_interface.py, the class CausalConv1dFn) and of mamba-ssm 2.3 (ops/selective_scan_interface.py,
the class SelectiveScanFn, and csrc/selective_scan/selective_scan.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

from bench.training.models.mamba import SCAN_CHUNK
from bench.training.models.mixers import MixersFamily
from bench.training.models.operation_counters import ScanCount
from bench.training.models.stand_in import empty_operator
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import Tensor

    from bench.training.vendor.transformers_inside import Mamba1Kernels


class Mamba1Mixers(MixersFamily):
    """A type of transformers with mixers of Mamba 1, whose linear layers the kernels leave to the model."""

    packages = transformers_inside.MAMBA_PACKAGES
    fused = "causal-conv1d and mamba-ssm: convolution and scan of a mixer, one kernel each"

    def mamba_ssm(self) -> Mamba1Kernels:
        """Return the kernels for the convolution and the scan of a mixer."""
        return transformers_inside.mamba1_kernels()

    def stand_ins(self) -> Mamba1Kernels:
        """Return functions that keep what the two kernels keep."""
        return kept_convolution, kept_scan

    def mix_by(self, functions: Mamba1Kernels | None) -> None:
        """Let mixers of this type convolve and scan by these functions in this process, or by plain code."""
        transformers_inside.scan_mamba1_by(self.name, functions)

    def counted_by(self, scans: ScanCount) -> AbstractContextManager[None]:
        """Return a context in which scans compute nothing and are counted."""
        return transformers_inside.mamba1_scans_by(self.name, scans.scan)


def kept_convolution(entry: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    """Return a tensor like a convolution's result, and keep for the backward pass what the kernel keeps."""
    given = [entry, weight] if bias is None else [entry, weight, bias]
    result: Tensor = _convolution()(given)[0]
    return result


def kept_scan(
    entry: Tensor,
    time_step: Tensor,
    decay: Tensor,
    into: Tensor,
    out_of: Tensor,
    *,
    D: Tensor,  # noqa: N803 (the name in the mixers' calls)
    z: Tensor,
    delta_bias: Tensor,
    **_: Any,
) -> Tensor:
    """Return a tensor like a scan's result, and keep for the backward pass what the kernel keeps.

    `decay`, `into` and `out_of` are what the paper calls A, B and C.
    """
    result: Tensor = _scan()([entry, time_step, into, out_of, z, decay, D, delta_bias])[0]
    return result


PER_POSITION = 5  # of a scan's arguments, which the kernel copies if positions are not side by side


@cache
def _convolution() -> Callable[..., Sequence[Tensor]]:
    return _operator("kept_mamba1_convolution", _convolved, lambda given, _: given, _gradients)


@cache
def _scan() -> Callable[..., Sequence[Tensor]]:
    return _operator("kept_mamba1_scan", _scanned, _kept_of_scan, _gradients_of_scan)


def _operator(
    name: str,
    results: Callable[[Sequence[Tensor]], list[Tensor]],
    kept: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    gradients: Callable[[Tensor, Sequence[Tensor]], list[Tensor]],
) -> Callable[..., Sequence[Tensor]]:
    """Return an operator without contents: what it is given is a list, and its first result counts.

    `kept` returns what it keeps of the given and of its results, the given ones first. `gradients` returns
    from the first result's gradient and the kept ones those of the given ones, and what else is in use.
    """
    forward = empty_operator(name, "(Tensor[] given) -> Tensor[]", results, ends_graph=True)
    backward = empty_operator(f"{name}_backward", "(Tensor gradient, Tensor[] kept) -> Tensor[]", gradients)

    def save(ctx: Any, inputs: tuple[Sequence[Tensor]], output: Sequence[Tensor]) -> None:
        (given,) = inputs
        ctx.given = len(given)
        ctx.save_for_backward(*kept(given, output))

    def run_backward(ctx: Any, of_results: Sequence[Tensor]) -> list[Tensor]:
        found: list[Tensor] = backward(of_results[0], list(ctx.saved_tensors))
        return found[: ctx.given]

    forward.register_autograd(run_backward, setup_context=save)
    operator: Callable[..., Sequence[Tensor]] = forward
    return operator


def _convolved(given: Sequence[Tensor]) -> list[Tensor]:
    import torch

    return [torch.empty_like(given[0])]


def _gradients(_gradient: Tensor, kept: Sequence[Tensor]) -> list[Tensor]:
    import torch

    return [torch.empty_like(tensor) for tensor in kept]


def _scanned(given: Sequence[Tensor]) -> list[Tensor]:
    """Return a scan's result behind the gate and before it, its states, and copies of given tensors."""
    import torch

    entry, *_ = given
    samples, inner, length = entry.shape
    states = 2 * given[PER_POSITION].shape[-1]
    chunks = entry.new_empty(samples, inner, ceil(length / SCAN_CHUNK), states, dtype=torch.float32)
    copies = [_in_order(tensor) for tensor in given[:PER_POSITION] if _is_copied(tensor)]
    return [_in_order(entry), _in_order(entry), chunks, *copies]


def _is_copied(tensor: Tensor) -> bool:
    return bool(tensor.stride(-1) != 1)


def _in_order(tensor: Tensor) -> Tensor:
    import torch

    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _kept_of_scan(given: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return what the kernel keeps: the given tensors or their copies, its result before the gate, states."""
    _, before_gate, chunks, *copies = results
    remaining = iter(copies)
    ordered = [next(remaining) if _is_copied(tensor) else tensor for tensor in given[:PER_POSITION]]
    return [*ordered, *given[PER_POSITION:], before_gate, chunks]


def _gradients_of_scan(gradient: Tensor, kept: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients without contents, then what the kernel's backward pass takes beside them.

    It copies the gradient that it gets, and adds up gradients of B and C in fp32 before it lowers them.
    """
    import torch

    *given, _, _ = kept
    copies = [_in_order(gradient)] if _is_copied(gradient) else []
    sums = [
        torch.empty_like(tensor, dtype=torch.float32)
        for tensor in given[2:4]
        if tensor.dtype != torch.float32
    ]
    return [*map(torch.empty_like, given), *copies, *sums]

"""Changes for would_it_pay.py: optimisations that bench does not contain and that may be worth adding.

Each is a context manager that is active while a model is built and trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from mixer_operator import mixer_operator
from torch import Tensor

from bench.training.models import generic, transposed_factors
from bench.training.objectives import Objective
from bench.training.vendor import torch_inside, transformers_inside


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


@contextmanager
def stages_as_blocks() -> Iterator[None]:
    """Compile each stage of an image model as one graph, and not each layer of a stage (decision 14)."""
    plain = generic._layers_of_stages
    generic._layers_of_stages = lambda stages: stages
    try:
        yield
    finally:
        generic._layers_of_stages = plain


@contextmanager
def mixers_in_graphs() -> Iterator[None]:
    """Call mamba-ssm's kernel for mixers of Mamba 2 as an operator, so that no graph ends there."""
    plain = transformers_inside.mamba2_kernel
    transformers_inside.mamba2_kernel = mixer_operator
    try:
        yield
    finally:
        transformers_inside.mamba2_kernel = plain


class _AlongProduct(torch.autograd.Function):
    """A linear layer whose gradients are products with at most one factor across (product_layouts.py)."""

    @staticmethod
    def forward(ctx: Any, entry: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(entry, weight)
        ctx.biased = bias is not None
        return _linear(entry, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        entry, weight = ctx.saved_tensors
        entries, gradients = entry.flatten(0, -2), grad_out.flatten(0, -2)
        if weight.size(1) <= weight.size(0):
            of_weight = _multiply(gradients, entries.t().contiguous(), True, True)
        else:
            of_weight = _multiply(gradients.t().contiguous(), entries, False, False)
        of_input = _multiply(gradients, weight.t().contiguous(), False, True).view_as(entry)
        return of_input, of_weight, gradients.sum(0) if ctx.biased else None


_linear = F.linear


# An operator, because the compiler chooses the layout of a product's factors, but not of an operator's.
@torch.library.custom_op("bench_gpu::multiply", mutates_args=())
def _multiply(left: Tensor, right: Tensor, turn_left: bool, turn_right: bool) -> Tensor:
    return torch.mm(left.t() if turn_left else left, right.t() if turn_right else right)


@_multiply.register_fake
def _(left: Tensor, right: Tensor, turn_left: bool, turn_right: bool) -> Tensor:
    return left.new_empty(left.size(int(turn_left)), right.size(int(not turn_right)))


@contextmanager
def copies_by_compiler() -> Iterator[None]:
    """Let the compiler write the copies of the method "transposed-factors", fused with what it computes."""

    def linear(entry: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        fp32 = weight.dtype == entry.dtype == torch.float32 and not torch.is_autocast_enabled()
        if not fp32 or entry.dim() < 2 or not (weight.requires_grad and entry.requires_grad):
            return _linear(entry, weight, bias)
        result: Tensor = _AlongProduct.apply(entry, weight, bias)
        return result

    F.linear = linear
    try:
        with factors_as_they_lie():
            yield
    finally:
        F.linear = _linear


@contextmanager
def factors_as_they_lie() -> Iterator[None]:
    """Leave the method "transposed-factors" without effect."""
    plain = transposed_factors.take_over
    transposed_factors.take_over = lambda _layer: None
    try:
        yield
    finally:
        transposed_factors.take_over = plain


def padding(**settings: bool) -> Callable[[], AbstractContextManager[None]]:
    """Return a change of the settings by which the compiler pads products with rows of odd length."""
    return lambda: torch._inductor.config.patch(settings)


CHANGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "copies-by-compiler": copies_by_compiler,
    "factors-as-they-lie": factors_as_they_lie,
    "loss-in-triton": loss_in_triton,
    "mixers-in-graphs": mixers_in_graphs,
    "never-padded": padding(shape_padding=False),
    "padded": padding(force_shape_pad=True),
    "parts-together": parts_together,
    "stages-as-blocks": stages_as_blocks,
}

"""Changes for the scripts of this folder: optimisations that bench does not contain and that may pay.

Each is a context manager that is active while a model is built and trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
import torch._inductor.config
from mixer_operator import mixer_operator

from bench.training.models import full_attention, generic
from bench.training.objectives import Objective
from bench.training.vendor import compiler_inside, transformers_inside


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

    compiler_inside.compute_parts_apart()
    operator, tag = torch.ops.aten.cat.default, torch.compiler.config.cache_key_tag
    plain, apart = compiler_inside.compute_parts_apart, lowering.lowerings[operator]
    lowering.lowerings[operator] = apart.together
    torch.compiler.config.cache_key_tag = tag + "+parts-together"
    compiler_inside.compute_parts_apart = lambda: None
    try:
        yield
    finally:
        compiler_inside.compute_parts_apart = plain
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
def flex_attention() -> Iterator[None]:
    """Attend by FlexAttention where full-attention does by bench's kernels (decision 90)."""
    plain = full_attention.full_attention
    full_attention.full_attention = full_attention.flex_attention
    try:
        yield
    finally:
        full_attention.full_attention = plain


@contextmanager
def mixers_in_graphs() -> Iterator[None]:
    """Call mamba-ssm's kernel for mixers of Mamba 2 as an operator, so that no graph ends there."""
    plain = transformers_inside.mamba2_kernel
    transformers_inside.mamba2_kernel = mixer_operator
    try:
        yield
    finally:
        transformers_inside.mamba2_kernel = plain


def compiling(**settings: bool) -> Callable[[], AbstractContextManager[None]]:
    """Return a change of the compiler's settings; two underscores stand for the dot in a name."""
    return lambda: torch._inductor.config.patch(
        {name.replace("__", "."): on for name, on in settings.items()}
    )


CHANGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "flex-attention": flex_attention,
    "loss-in-triton": loss_in_triton,
    "mixers-in-graphs": mixers_in_graphs,
    "never-padded": compiling(shape_padding=False),
    "norms-apart": compiling(triton__mix_order_reduction=False),  # gradients of inputs and weights
    "padded": compiling(force_shape_pad=True),
    "parts-together": parts_together,
    "stages-as-blocks": stages_as_blocks,
    "tuned-by-descent": compiling(coordinate_descent_tuning=True),
    "tuned-elementwise": compiling(max_autotune_pointwise=True),
    "tuned-norms": compiling(triton__mix_order_reduction_autotune_split_size=True),
}


@contextmanager
def changed(names: Iterable[str]) -> Iterator[None]:
    """Make all of these changes for as long as the context lasts."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(CHANGES[name]())
        yield

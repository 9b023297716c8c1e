"""Changes for would_it_pay.py: optimisations that bench does not contain and that may be worth adding.

Each is a context manager that is active while a model is built and trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from unittest.mock import patch

import torch
import torch._inductor.config

from bench.training.objectives import Objective
from bench.training.vendor import torch_inside, transformers_inside

# Types with attention and mixers of Mamba 2, which have a function of the same name as Mamba 2's mixers.
HYBRIDS = ("bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2")


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
def mixers_by_mamba_ssm() -> Iterator[None]:
    """Compute mixers of HYBRIDS by mamba-ssm's kernel, instead of the plain code that would be compiled."""
    name, *_ = transformers_inside.MIXERS[transformers_inside.MAMBA2]
    kernel = transformers_inside.mamba2_kernel()
    with ExitStack() as stack:
        for hybrid in HYBRIDS:
            module = import_module(transformers_inside.modeling_module(hybrid))
            stack.enter_context(patch.object(module, name, kernel))
        yield


def padding(**settings: bool) -> Callable[[], AbstractContextManager[None]]:
    """Return a change of the settings by which the compiler pads products with rows of odd length."""
    return lambda: torch._inductor.config.patch(settings)


CHANGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "loss-in-triton": loss_in_triton,
    "never-padded": padding(shape_padding=False),
    "padded": padding(force_shape_pad=True),
    "parts-together": parts_together,
    "mixers-by-mamba-ssm": mixers_by_mamba_ssm,
}

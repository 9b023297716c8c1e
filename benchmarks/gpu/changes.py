"""Changes for would_it_pay.py: optimisations that bench does not contain and that may be worth adding.

Each is a context manager that is active while a model is built and trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch._inductor.config

from bench.training.objectives import Objective
from bench.training.vendor import torch_inside


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
    "loss-in-triton": loss_in_triton,
    "never-padded": padding(shape_padding=False),
    "padded": padding(force_shape_pad=True),
    "parts-together": parts_together,
}

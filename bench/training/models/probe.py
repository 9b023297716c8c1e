"""A tiny input on which a model runs once it is built, so that its parts can be found.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.training.models.model import Model
from bench.training.objectives.objective import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

SAMPLES, POSITIONS = 2, 8


@contextmanager
def probing(model: nn.Module) -> Iterator[Tensor]:
    """Yield tokens to call a model with; within the context it drops no units and keeps no activations."""
    with at_rest(model):
        yield _tokens(model)


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Let a model drop no units and keep no activations within the context."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def tiny_input(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """Return small inputs for a built model: a few samples of a few tokens, or of images of full size."""
    return {name: part for name, part in tiny_batch(module, model).items() if name != "labels"}


def tiny_batch(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """Return a batch of a few samples of a few tokens, or of images of full size."""
    import torch

    recipe = model.recipe
    small = replace(
        recipe,
        sequence_length=recipe.sequence_length and POSITIONS,
        target_length=recipe.target_length and POSITIONS,
    )
    parts = recipe.aim.parts(model.architecture, small)
    device, random = _device(module), torch.Generator("cpu").manual_seed(0)

    def contents(part: Part) -> Tensor:
        shape = (SAMPLES, *part.shape)
        if part.elements in ("pixels", "numbers"):
            return torch.rand(shape, generator=random, device="cpu").to(device)
        if part.elements == "ends":  # a single document
            return torch.full(shape, part.below - 1, device=device)
        alternating = torch.arange(math.prod(shape), device=device).view(shape) % min(2, part.below)
        return alternating.bool() if part.elements == "flags" else alternating

    return {part.name: contents(part) for part in parts}


def _tokens(model: nn.Module) -> Tensor:
    import torch

    return torch.arange(SAMPLES * POSITIONS, device=_device(model)).view(SAMPLES, POSITIONS) % 2


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device

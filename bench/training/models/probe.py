"""A tiny input on which a model runs once it is built, so that its parts can be found.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.training.models.model import Recipe

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


def tiny_input(model: nn.Module, recipe: Recipe) -> dict[str, Tensor]:
    """Return a few tokens, or a few images of the recipe's size, as keywords to call a model with."""
    import torch

    if recipe.image_size is None:
        return {"input_ids": _tokens(model)}
    size = (SAMPLES, 3, recipe.image_size, recipe.image_size)
    pixels = torch.rand(size, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    return {"pixel_values": pixels.to(_device(model))}


def _tokens(model: nn.Module) -> Tensor:
    import torch

    return torch.arange(SAMPLES * POSITIONS, device=_device(model)).view(SAMPLES, POSITIONS) % 2


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device

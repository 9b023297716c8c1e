"""A few tokens on which a language model runs once it is built, so that its parts can be found.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

SAMPLES, POSITIONS = 2, 8


@contextmanager
def probing(model: nn.Module) -> Iterator[Tensor]:
    """Yield tokens to call a model with; within the context it drops no units and keeps no activations."""
    import torch

    training = model.training
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad():
            yield torch.arange(SAMPLES * POSITIONS, device=device).view(SAMPLES, POSITIONS) % 2
    finally:
        model.train(training)

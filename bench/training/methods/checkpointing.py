"""Activation checkpointing: keep each block's input, compute the rest again in the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.training.methods import Method
from bench.training.models import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Checkpointing(Method):
    name: str = "checkpointing"
    summary: str = "activations of each block are computed again instead of kept"

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        for block in blocks:
            _checkpoint(block)


def _checkpoint(block: nn.Module) -> None:
    """Wraps the bound `forward`: the module keeps its class, its name and its parameters' names."""
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        # The random state is restored, so dropout drops the same units both times.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    block.forward = recomputed


METHODS = (Checkpointing(),)

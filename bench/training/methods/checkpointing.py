"""Activation checkpointing: keep each block's input, compute the rest again in the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.training.methods.method import Method
from bench.training.models import Model

if TYPE_CHECKING:
    from torch import nn


def _apply(_model: Model, _whole: nn.Module, blocks: list[nn.Module]) -> None:
    for block in blocks:
        _checkpoint(block)


def _checkpoint(block: nn.Module) -> None:
    """Wrap the block's bound `forward`, so that its class, its name and its parameters' names stay."""
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        # The random state is restored, so dropout drops the same units both times.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    block.forward = recomputed


METHODS = (
    Method(
        name="checkpointing",
        summary="activations of each block are computed again instead of kept",
        prior_time=1.25,
        least_time_with=1.10,  # a third of the arithmetic is done again: docs/accuracy.md
        least_time_without=0.65,  # beside frozen weights, a forward pass is half of the arithmetic
        chooses_kernels=False,
        configured_by=("trainer",),
        apply=_apply,
    ),
)

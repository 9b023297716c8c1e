"""Stochastic depth: modules that leave out whole samples at random, each with a rate of its own.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

TRIED = 64  # samples


def keep_rates_in_tensors(block: nn.Module) -> None:
    """Replace stochastic depth in a block by the same arithmetic with its rate in a tensor.

    As a number, the rate is a constant of a compiled graph. It rises from block to block, so that no two
    blocks would share a graph.
    """
    import torch

    for part in _stochastic_depths(block):
        _replace(part, torch.tensor(1.0 - part.drop_prob, device=next(block.parameters()).device))


def _replace(part: nn.Module, kept: Tensor) -> None:
    import torch

    part.register_buffer("kept", kept, persistent=False)

    def forward(features: Tensor) -> Tensor:
        if not part.training:
            return features
        shape = (len(features),) + (1,) * (features.ndim - 1)
        chance = torch.rand(shape, dtype=features.dtype, device=features.device)
        return features.div(part.kept) * torch.floor(chance + part.kept)

    part.forward = forward


def _stochastic_depths(block: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that have a rate in `drop_prob`, nothing inside, and the behaviour for this rate."""
    for part in block.modules():
        rate = getattr(part, "drop_prob", None)
        inside = [*part.children(), *part.parameters(), *part.buffers()]
        if isinstance(rate, float) and 0 < rate < 1 and not inside and _leaves_out_samples(part, rate):
            yield part


def _leaves_out_samples(part: nn.Module, rate: float) -> bool:
    """Whether a module in training scales each sample by the inverse of the kept share, or by zero."""
    import torch

    features = torch.ones(TRIED, 2, device="cpu")
    mode = part.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            trained, evaluated = part.train()(features), part.eval()(features)
    except Exception:  # an architecture's code may raise anything about features of this form
        return False
    finally:
        part.train(mode)
    first, second = trained.unbind(dim=1)
    scaled = torch.isclose(first, torch.tensor(1 / (1 - rate), device="cpu")) | (first == 0)
    return bool((first == second).all() and scaled.all() and torch.equal(evaluated, features))

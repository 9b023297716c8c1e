"""A step of several passes whose loss compares the samples of all of them, computed in two phases.

First the model answers every micro-batch, without keeping activations. The loss of the recipe's whole batch
and its gradients with respect to all answers follow from that. Then every micro-batch is answered again, and
its backward pass begins with the gradients of its own answers. So the gradients are those of one pass over
the whole batch, and each further pass lengthens a step by the same time. Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bench.runner.trial.made_up_data import Batches

if TYPE_CHECKING:
    from bench.runner.trial.training_loop import Batch, Strategy, WithLoss


def compared_passes(
    whole: WithLoss, strategy: Strategy, data: Iterator[Batch], device: torch.device, count: int, of: int
) -> Iterator[Batch]:
    """Yield `count` micro-batches with their labels, as in a step of `of` passes.

    In a step of fewer passes than `of`, copies of its answers stand for those of the missing passes: then the
    loss takes as long as the recipe's.
    """
    held = [data.on_host() if isinstance(data, Batches) else next(data) for _ in range(count)]
    states: list[Any] = []
    answers: list[Tensor] = []
    for batch in held:
        states.append(_random_state(device))
        answers.append(strategy.answers(_placed(data, batch, device)).clone())
    labels = whole.targets(_filled(answers, of), of).split(len(answers[0]))
    for batch, state, part in zip(held, states, labels, strict=False):
        _set_random_state(device, state)  # the second time, a pass drops the same units as the first time
        yield {**_placed(data, batch, device), "labels": part}


def _filled(answers: Sequence[Tensor], passes: int) -> Tensor:
    return torch.cat([answers[i % len(answers)] for i in range(passes)])


def _placed(data: Iterator[Batch], batch: Batch, device: torch.device) -> Batch:
    if isinstance(data, Batches):
        return data.on_device(dict(batch))
    return {name: part.to(device, non_blocking=True) for name, part in batch.items()}


def _random_state(device: torch.device) -> tuple[Tensor, ...]:
    on_host = torch.get_rng_state()
    return (on_host, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (on_host,)


def _set_random_state(device: torch.device, state: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)

"""Linear layers that read the same tensor, found by running the model once and tried by running it again.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.training.models import Model, family_of
from bench.training.models.probe import close, model_call, on_tiny_input

if TYPE_CHECKING:
    from torch import Tensor, nn


def siblings_of(module: nn.Module, model: Model) -> list[tuple[nn.Linear, ...]]:
    """Return groups of plain linear layers of one block that a model calls on the same tensor.

    The layers of a group are in the order of their calls; all have a bias, or none has one. Layers whose
    weights are used more than once in a pass are left out: each weight has one place beside those of others.
    Layers of two blocks are not in one group, because a block that is compiled or computed again runs alone.
    Raises LookupError if there are no groups, if the model cannot run on a tiny input, or if its code gives
    another output once the results of layers lie side by side.
    """
    with on_tiny_input(module, model) as answer:
        with model_call():
            calls, expected = _watched(module, answer)
        groups = _groups(calls, family_of(model).blocks(module))
        if not groups:
            raise LookupError("no two linear layers of a block read the same tensor, each in one call")
        with _side_by_side([layer for group in groups for layer in group]):
            with model_call(failing="the model cannot run if results of layers lie side by side"):
                found = answer()
            if not close(found, expected):
                raise LookupError("the model gives another output if results of layers lie side by side")
    return groups


def _groups(
    calls: Sequence[tuple[nn.Linear, Tensor]], blocks: Sequence[nn.Module]
) -> list[tuple[nn.Linear, ...]]:
    """Return the layers that read the same tensor, by the calls of a pass."""
    block_of = {part: number for number, block in enumerate(blocks) for part in block.modules()}
    times = Counter(layer.weight for layer, _ in calls)
    groups: dict[Hashable, list[nn.Linear]] = {}
    for layer, entry in calls:
        if times[layer.weight] == 1:
            kind = (id(entry), block_of.get(layer), layer.bias is None)
            groups.setdefault(kind, []).append(layer)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _watched(
    module: nn.Module, answer: Callable[[], Tensor]
) -> tuple[list[tuple[nn.Linear, Tensor]], Tensor]:
    """Return the calls of a model's plain linear layers in order, with what they read, and its answer."""
    from torch import nn

    calls: list[tuple[nn.Linear, Tensor]] = []

    def note(layer: nn.Module, entries: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, entries[0]))  # keeps the tensor alive, so that no other gets its place

    plain = [part for part in module.modules() if type(part) is nn.Linear]
    hooks = [layer.register_forward_pre_hook(note) for layer in plain]
    try:
        return calls, answer()
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _side_by_side(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Let the results of layers lie in memory as those of a joined product do: rows with others between."""
    import torch

    def apart(_layer: nn.Module, _entries: Any, result: Tensor) -> Tensor:
        return torch.cat([result, result], -1)[..., : result.size(-1)]

    hooks = [layer.register_forward_hook(apart) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

"""Linear layers that read the same tensor, found by running the model once.

Imports torch only when called, in a worker.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bench.training.models.model import Model
from bench.training.models.probe import at_rest, tiny_input

if TYPE_CHECKING:
    from torch import Tensor, nn


def siblings_of(module: nn.Module, model: Model) -> list[tuple[nn.Linear, ...]]:
    """Return groups of plain linear layers that a model calls on the same tensor.

    The layers of a group are in the order of their calls; all have a bias, or none has one. Layers that are
    called more than once in a pass are left out.
    """
    from torch import nn

    calls: list[tuple[nn.Linear, Tensor]] = []

    def note(layer: nn.Module, entries: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, entries[0]))  # keeps the tensor alive, so that no other gets its place

    plain = [part for part in module.modules() if type(part) is nn.Linear]
    hooks = [layer.register_forward_pre_hook(note) for layer in plain]
    try:
        with at_rest(module):
            module(**tiny_input(module, model))
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(layer for layer, _ in calls)
    groups: dict[tuple[int, bool], list[nn.Linear]] = {}
    for layer, entry in calls:
        if times[layer] == 1:
            groups.setdefault((id(entry), layer.bias is None), []).append(layer)
    return [tuple(group) for group in groups.values() if len(group) > 1]

"""The output and the loss of a model. Imports torch only when called, in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def logits(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Call the model with the batch's input, `input_ids` or `pixel_values`; return its logits."""
    out: Tensor = module(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return out


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the labels that are not -100.

    Replaces transformers' own loss, which would shift causal labels a second time.
    """
    from torch.nn.functional import cross_entropy

    loss: Tensor = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100)
    return loss

"""The output and the loss of a model. Imports torch only when called, in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.training.models.model import Model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

IGNORED = -100  # the label of positions without a loss


def empty_batch(model: Model, samples: int, pixels: torch.dtype) -> dict[str, Tensor]:
    """Return a batch whose contents are arbitrary, with pixels in this precision."""
    import torch

    recipe = model.recipe
    if recipe.objective == "image-classification":
        assert recipe.image_size is not None
        size = (samples, 3, recipe.image_size, recipe.image_size)
        return {
            "pixel_values": torch.empty(size, dtype=pixels),
            "labels": torch.empty(samples, dtype=torch.long),
        }
    ids = torch.empty(samples, recipe.units_per_sample, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def logits(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Call the model with the batch's input, `input_ids` or `pixel_values`; return its logits."""
    out: Tensor = module(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return out


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the labels that are not ignored.

    Replaces transformers' own loss, which would shift causal labels a second time.
    """
    from torch.nn.functional import cross_entropy

    loss: Tensor = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
    return loss

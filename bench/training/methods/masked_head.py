"""The head of a masked language model at the masked positions only: no other position enters the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Flops, Model, family_of

if TYPE_CHECKING:
    from torch import Tensor, nn


def _refuse(model: Model, _target: Target) -> str | None:
    if model.recipe.objective != "masked-lm":
        return "only a masked language model has positions that the loss ignores"
    if family_of(model).body_and_head is None:
        return f"bench does not know which module of {model.family} is the head"
    return None


def _apply(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    whole.parts = family_of(model).body_and_head
    count = model.recipe.asked_per_sample

    def masked_positions(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # All samples have equally many masked positions, so shapes stay constant; the sort puts these first.
        first = (labels == -100).int().argsort(dim=1, stable=True)[:, :count]
        chosen = features.gather(1, first.unsqueeze(-1).expand(-1, -1, features.size(-1)))
        return chosen, labels.gather(1, first)

    whole.select_positions = masked_positions


def _left_out(model: Model) -> Flops:
    """Return the arithmetic of the head (a dense layer and the vocabulary) at positions not masked."""
    a = family_of(model).complete(model)
    hidden, vocabulary = a["hidden_size"], a["vocab_size"]
    unmasked = model.recipe.units_per_sample - model.recipe.asked_per_sample
    return Flops(2 * unmasked * hidden * (hidden + vocabulary))


METHODS = (
    Method(
        name="masked-head",
        summary="a masked language model's head at the masked positions only",
        free_lunch=True,
        refuse=_refuse,
        apply=_apply,
        left_out=_left_out,
    ),
)

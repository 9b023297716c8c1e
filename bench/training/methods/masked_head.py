"""The head of a masked language model at the masked positions only: no other position enters the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target
from bench.training.models import Counted, Flops, Model
from bench.training.objectives.objective import IGNORED
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import Tensor, nn


def _refuse(model: Model, _target: Target) -> str | None:
    if model.recipe.objective != "masked-lm":
        return "only a masked language model has positions that the loss ignores"
    return transformers_source.why_head_needs_more(model.family)


def _apply(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    count = model.recipe.asked_per_sample

    def masked_positions(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # All samples have equally many masked positions, so shapes stay constant; the sort puts these first.
        first = (labels == IGNORED).int().argsort(dim=1, stable=True)[:, :count]
        chosen = features.gather(1, first.unsqueeze(-1).expand(-1, -1, features.size(-1)))
        return chosen, labels.gather(1, first)

    whole.select_positions = masked_positions


def _left_out(model: Model, counts: Counted) -> Flops:
    """Return the arithmetic of the head at positions that are not masked."""
    positions = model.recipe.units_per_sample
    unasked = positions - model.recipe.asked_per_sample
    backward = None if counts.head_backward is None else counts.head_backward * unasked // positions
    return Flops(counts.head * unasked // positions, backward=backward)


METHODS = (
    Method(
        name="masked-head",
        summary="a masked language model's head at the masked positions only",
        free_lunch=True,
        head="needed",
        refuse=_refuse,
        apply=_apply,
        left_out=_left_out,
    ),
)

"""Logits at the masked positions alone: no other enters the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Flops, Model
from bench.training.models.footprint import complete
from bench.training.models.own_models import family_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class MaskedHead(Method):
    name: str = "masked-head"
    summary: str = "a masked language model's head at the positions that are asked"
    free_lunch: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.recipe.objective != "masked-lm":
            return "only a masked language model has positions that are not asked"
        if family_of(model).body_and_head is None:
            return f"where the head of {model.family} begins is not known here"
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        whole.parts = family_of(model).body_and_head
        count = model.recipe.asked_per_sample

        def asked(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            # As many in every sample, so that shapes stay what they are: the asked ones come first.
            first = (labels == -100).int().argsort(dim=1, stable=True)[:, :count]
            chosen = features.gather(1, first.unsqueeze(-1).expand(-1, -1, features.size(-1)))
            return chosen, labels.gather(1, first)

        whole.asked = asked

    def left_out(self, model: Model) -> Flops:
        """The head's share of the arithmetic: a dense layer, then the vocabulary."""
        a = complete(model, family_of(model).defaults())
        hidden, vocabulary = a["hidden_size"], a["vocab_size"]
        silent = model.recipe.units_per_sample - model.recipe.asked_per_sample
        return Flops(2 * silent * hidden * (hidden + vocabulary))


METHODS = (MaskedHead(),)

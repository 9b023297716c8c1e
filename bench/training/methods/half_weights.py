"""Half-precision weights with an fp32 copy, where the recipe was trained so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model, families

# Others, Mamba among them, kept fp32 weights and computed under autocast.
TRAINED_SO = {
    "gpt_neox": "Pythia: fp16 under DeepSpeed's optimizer (github.com/EleutherAI/pythia, models/*/*.yml)",
    "roberta": "fairseq's --fp16: half weights, an fp32 copy in its FP16Optimizer",
}


@dataclass(frozen=True, slots=True)
class HalfWeights(Method):
    """Marks a setting; bench.runner.trial.half_weights_strategy holds the weights accordingly."""

    name: str = "half-weights"
    summary: str = "weights in half precision, updated through an fp32 copy; gradients added up in fp32"
    free_lunch: ClassVar[bool] = False

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.recipe.precision == "fp32":
            return f"{model.name} trains in fp32"
        if model.family in families() and model.family not in TRAINED_SO:
            return f"{model.name} was trained with fp32 weights under autocast"
        return None


METHODS = (HalfWeights(),)

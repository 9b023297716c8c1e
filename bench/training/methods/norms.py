"""The two norms of a GPT-NeoX block by kernels of our own: both are of the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.training.methods import Method, Target
from bench.training.models import Model
from bench.training.models.footprint import complete
from bench.training.models.own_models import family_of

if TYPE_CHECKING:
    from torch import nn


WIDEST = 4096  # numbers of a row, which one program holds in its registers: as wide as it was measured


@dataclass(frozen=True, slots=True)
class Norms(Method):
    """Beside half-weights alone: under autocast norms are in fp32, and what follows reads them halved."""

    name: str = "norms"
    summary: str = "both norms of a block in Triton, which reads what they are of once each way"
    free_lunch: ClassVar[bool] = True
    built_there: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if model.family != "gpt_neox":
            return f"{model.name} has no two norms side by side"
        if target.device == "cpu":
            return "its kernels are for NVIDIA GPUs"
        a = complete(model, family_of(model).defaults())
        if not a["use_parallel_residual"]:
            return f"the second norm of {model.name} waits for its attention (use_parallel_residual)"
        if a["hidden_dropout"]:
            return f"{model.name} drops units behind its norms (hidden_dropout)"
        if a["hidden_size"] > WIDEST:
            return f"its kernels take {WIDEST:,} numbers a row at most; {model.name} has {a['hidden_size']:,}"
        return None

    def apply(self, model: Model, whole: nn.Module, blocks: list[nn.Module]) -> None:
        from bench.training.triton.norms import forward_of  # brings Triton, which needs a GPU

        for block in blocks:
            block.forward = forward_of(block)


METHODS = (Norms(),)

"""Adam and AdamW, which are one algorithm here: weight decay is not added to the gradient (docs/adr/0003)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bench.base.frozen import dataclass
from bench.training.optimizers.contract import OptimizerContract

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class Adam(OptimizerContract):
    """Adam and AdamW of torch: two moments in fp32 for each weight."""

    name: Literal["adam", "adamw"]  # as the source calls it
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    @property
    def options(self) -> dict[str, Any]:
        """The fields as keywords, which torch's and DeepSpeed's classes have in common."""
        betas = (self.beta1, self.beta2)
        return {
            "lr": self.learning_rate, "betas": betas, "eps": self.epsilon, "weight_decay": self.weight_decay
        }  # fmt: skip

    def make(
        self, weights: Sequence[nn.Parameter], matrices: Sequence[int], *, fused: bool
    ) -> torch.optim.Optimizer:
        """Return AdamW for both names.

        torch.optim.Adam adds the decay to the gradient, which a Pythia's decay outweighs: the tiny model then
        learns nothing in 500 steps.
        """
        import torch

        return torch.optim.AdamW(weights, **self.options, fused=fused or None)

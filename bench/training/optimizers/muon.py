"""Muon for the matrices of the repeated blocks, AdamW for all other weights.

Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon);
Liu et al., "Muon is Scalable for LLM Training" (Moonlight, arxiv.org/abs/2502.16982). The momentum of a
matrix is replaced by a matrix with the same singular vectors and singular values near one. Defaults are those
of torch.optim.Muon, except for the learning rate: "match_rms_adamw" scales each update so that learning
rates and weight decays that suit AdamW can be kept, as Moonlight does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.base.errors import BadInput
from bench.base.frozen import dataclass
from bench.training.optimizers.contract import FP32_MOMENTS, OptimizerContract, Sharder

if TYPE_CHECKING:
    import torch
    from torch import nn

MOMENTUM_BYTES = 4  # of a parameter of a matrix: one moment in fp32


@dataclass(frozen=True, slots=True)
class Muon(OptimizerContract):
    """Muon for the matrices of repeated blocks, and AdamW for all other weights."""

    name: Literal["muon"]
    learning_rate: float
    beta1: float  # of AdamW, like the next two
    beta2: float
    epsilon: float
    weight_decay: float  # of all weights
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5  # Newton-Schulz iterations
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    adamw_learning_rate: float | None = None  # of weights that AdamW updates; None: learning_rate

    not_sharded_by: ClassVar[Mapping[Sharder, str]] = {
        "zero": "Muon updates whole matrices, and ZeRO gives each GPU's optimizer a flat shard of them",
        "fsdp": "Muon updates whole matrices, and FSDP2 gives each GPU's optimizer some of their rows",
    }
    not_exported_to: ClassVar[Mapping[str, str]] = {
        "deepspeed": "Muon with bench's update was not tested in DeepSpeed's engine",
    }
    updates_matrices: ClassVar[bool] = True
    computes_in_bf16: ClassVar[bool] = True

    @property
    def options(self) -> dict[str, Any]:
        """The fields of Muon itself, by the names of torch.optim.Muon where it has them."""
        return {
            "lr": self.learning_rate,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "ns_steps": self.ns_steps,
            "adjust_lr": self.adjust_lr,
        }

    @property
    def adamw_options(self) -> dict[str, Any]:
        """The fields of AdamW as keywords of torch's optimizers."""
        rate = self.learning_rate if self.adamw_learning_rate is None else self.adamw_learning_rate
        betas = (self.beta1, self.beta2)
        return {"lr": rate, "betas": betas, "eps": self.epsilon, "weight_decay": self.weight_decay}

    def moment_bytes(self, matrices: int, rest: int) -> int:
        """Count one momentum for each parameter of a matrix, and two moments for each other one."""
        return MOMENTUM_BYTES * matrices + FP32_MOMENTS * rest

    def make(
        self, weights: Sequence[nn.Parameter], matrices: Sequence[int], *, fused: bool
    ) -> torch.optim.Optimizer:
        """Divide the weights between Muon and AdamW; BadInput if there is no matrix in a block."""
        from bench.training.optimizers.updates.muon import MuonUpdate

        counts = dict(zip(weights, matrices, strict=True))
        in_matrices = {weight: count for weight, count in counts.items() if count}
        if not in_matrices:
            raise BadInput("Muon found no matrix in repeated blocks", advice="use adamw")
        rest = [weight for weight, count in counts.items() if not count]
        return MuonUpdate(in_matrices, self.options, rest, self.adamw_options, fused)

"""AdamW whose moments take one byte a parameter each, in blocks that share a scale.

Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arxiv.org/abs/2110.02861): blocks of 256
numbers, each number stored as the nearest of 256 levels that lie closer together towards zero, and weights of
less than 4,096 numbers with moments in fp32. Of the second moment the root is stored, so that a number that
is too small to store in it is too small in the first moment, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.base.frozen import dataclass
from bench.training.optimizers.contract import OptimizerContract, Sharder
from bench.training.optimizers.updates import BLOCK

if TYPE_CHECKING:
    import torch
    from torch import nn

SCALE = 4  # bytes, fp32
LEAST = 4096  # numbers; smaller weights keep moments in fp32


@dataclass(frozen=True, slots=True)
class AdamW8bit(OptimizerContract):
    """AdamW whose moments are 8-bit codes in blocks with one scale each; small weights keep fp32 moments."""

    name: Literal["adamw-8bit"]
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    not_sharded_by: ClassVar[Mapping[Sharder, str]] = {
        "zero": "ZeRO gives the optimizer flat shards of many weights, and adamw-8bit was not tested on them",
        "fsdp": "a checkpoint of FSDP2 would hold the 8-bit moments of one GPU only",
    }
    not_exported_to: ClassVar[Mapping[str, str]] = {
        "deepspeed": "adamw-8bit was not tested in DeepSpeed's engine",
        "standalone": "adamw-8bit is code of bench: other moments in 8 bits give other losses",
    }
    compiled_if_fused: ClassVar[bool] = True

    @property
    def options(self) -> dict[str, Any]:
        """The fields as keywords of torch's optimizers."""
        betas = (self.beta1, self.beta2)
        return {
            "lr": self.learning_rate, "betas": betas, "eps": self.epsilon, "weight_decay": self.weight_decay
        }  # fmt: skip

    def moment_bytes(self, matrices: int, rest: int) -> int:
        """Count two bytes for each parameter, and two scales for each block."""
        parameters = matrices + rest
        return 2 * parameters + 2 * SCALE * -(-parameters // BLOCK)

    def trainer_name(self, *, fused: bool) -> str:
        """Return the name by which the Trainer uses bitsandbytes, which has an 8-bit AdamW of its own."""
        return "adamw_bnb_8bit"  # of bitsandbytes

    def make(
        self, weights: Sequence[nn.Parameter], matrices: Sequence[int], *, fused: bool
    ) -> torch.optim.Optimizer:
        """Give weights below the least size to AdamW in fp32."""
        from bench.training.optimizers.updates.adamw_8bit import AdamW8bitUpdate

        large = [weight for weight in weights if weight.numel() >= LEAST]
        small = [weight for weight in weights if weight.numel() < LEAST]
        return AdamW8bitUpdate(large, small, self.options, fused)

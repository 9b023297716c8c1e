"""The contract of an optimizer: the fields that a recipe sets, and the facts that other modules need.

Pure: torch is imported only by `make`, which a worker calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

Sharder = Literal["zero", "fsdp"]  # what divides a model among GPUs: DeepSpeed's ZeRO or PyTorch's FSDP2
FP32_MOMENTS = 8  # bytes a parameter: Adam's two moments


class OptimizerContract:
    """Base class of every optimizer: a frozen dataclass whose fields are those that a recipe may set.

    Planning, search and export read these constants and know no optimizer by its name. A new optimizer is a
    file of this folder and a name in `OPTIMIZERS` of its __init__.py. tests/training/optimizers runs over
    all of them.
    """

    __slots__ = ()

    # What cannot divide a model that this optimizer updates, each with the reason that people read.
    not_sharded_by: ClassVar[Mapping[Sharder, str]] = {}
    # Frameworks of `bench export` that cannot train with it, each with the reason.
    not_exported_to: ClassVar[Mapping[str, str]] = {}
    updates_matrices: ClassVar[bool] = False  # `make` needs to know which weights are matrices of blocks
    computes_in_bf16: ClassVar[bool] = False  # in its update, in recipes of any precision
    compiled_if_fused: ClassVar[bool] = False  # torch.compile makes the fused update on a GPU

    def moment_bytes(self, matrices: int, rest: int) -> int:
        """Return the bytes of the moments of the parameters in the blocks' matrices, and of the rest."""
        return FP32_MOMENTS * (matrices + rest)

    def trainer_name(self, *, fused: bool) -> str:
        """Return the value of TrainingArguments' "optim" that comes nearest."""
        return "adamw_torch_fused" if fused else "adamw_torch"

    def make(
        self, weights: Sequence[nn.Parameter], matrices: Sequence[int], *, fused: bool
    ) -> torch.optim.Optimizer:
        """Make torch's optimizer of these weights.

        `matrices` says of each weight how many matrices of blocks it holds; 0 of all of them unless
        `updates_matrices`.
        """
        raise NotImplementedError

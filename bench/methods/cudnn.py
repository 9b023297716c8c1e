"""Attention by cuDNN: written for Hopper and later, where PyTorch's own choice is a kernel made for Ampere.

PyTorch's other kernels are switched off, so that a shape that cuDNN does not take ends the trial with
PyTorch's reason and is never timed by another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.methods import Method, Target
from bench.models import Model
from bench.models._common import SDPA
from bench.models.inline import family_of


@dataclass(frozen=True, slots=True)
class CudnnAttention(Method):
    name: str = "cudnn-attention"
    summary: str = "attention by cuDNN, in half precision"
    group: ClassVar[str | None] = "attention"

    def refuse(self, model: Model, target: Target) -> str | None:
        if family_of(model).kernels != SDPA:
            return f"{model.family} has no attention that cuDNN could compute"
        if model.recipe.precision == "fp32":
            return "cuDNN computes attention in half precision alone"
        if target.device == "cpu":
            return "cuDNN is for NVIDIA GPUs"
        return target.too_old_for("cuDNN's attention")

    def prepare(self) -> None:
        import torch

        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)


METHODS = (CudnnAttention(),)

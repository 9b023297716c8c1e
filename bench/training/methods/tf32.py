"""TF32: matrix units round fp32 operands to 10 bits of mantissa; sums stay in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.training.methods import Method, Target, older_than
from bench.training.models import Model


@dataclass(frozen=True, slots=True)
class Tf32(Method):
    name: str = "tf32"
    summary: str = "fp32 matrix products and convolutions on TF32 units"
    free_lunch: ClassVar[bool] = True

    def refuse(self, model: Model, target: Target) -> str | None:
        if target.device == "cpu":
            return "TF32 is a mode of NVIDIA GPUs"
        if older_than(target, 8.0):
            return f"TF32 needs compute capability 8.0, this GPU has {target.compute_capability}"
        return None

    def prepare(self) -> None:
        import torch

        # By the older names, which say it to the newer ones (`fp32_precision`) too, but not the other way
        # round: what torch then asks by the older, as max-autotune does, raises.
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


METHODS = (Tf32(),)

"""TF32: matrix units round fp32 operands to 10 bits of mantissa; sums stay in fp32."""

from __future__ import annotations

from bench.training.methods.method import Method, Target, older_than
from bench.training.models import Model


def _refuse(_model: Model, target: Target) -> str | None:
    if target.device == "cpu":
        return "TF32 is a mode of NVIDIA GPUs"
    if older_than(target, 8.0):
        return f"TF32 needs compute capability 8.0, this GPU has {target.compute_capability}"
    return None


def _prepare() -> None:
    import torch

    # The older names also set the newer ones (`fp32_precision`), but not the other way round: after setting
    # the newer ones alone, reading an older name raises, which max-autotune does.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


METHODS = (
    Method(
        name="tf32",
        summary="fp32 matrix products and convolutions on TF32 units",
        free_lunch=True,
        refuse=_refuse,
        prepare=_prepare,
    ),
)

"""Kernels that libraries bring: TF32 units, and fused attention or selective scan.

Which hand-written kernel the method "kernels" takes depends on the family, which builds it (`Family.build`).
"""

from __future__ import annotations

from bench.training.methods.method import Method, Target, older_than
from bench.training.models import Model, family_of


def _refuse_tf32(_model: Model, target: Target) -> str | None:
    if target.device == "cpu":
        return "TF32 is a mode of NVIDIA GPUs"
    if older_than(target, 8.0):
        return f"TF32 needs compute capability 8.0, this GPU has {target.compute_capability}"
    return None


def _prepare_tf32() -> None:
    import torch

    # The older names also set the newer ones (`fp32_precision`), but not the other way round: after setting
    # the newer ones alone, reading an older name raises, which max-autotune does.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def _refuse_kernels(model: Model, target: Target) -> str | None:
    family = family_of(model)
    if model.recipe.precision == "fp8" and not family.kernels_call_layers:
        return f"the kernels of {family.name} multiply by weights themselves, in bf16, and the recipe is fp8"
    return family.missing_kernels(target.device, target.has) or family.why_no_kernels(model)


METHODS = (
    Method(
        name="tf32",  # matrix units round fp32 operands to 10 bits of mantissa; sums stay in fp32
        summary="fp32 matrix products and convolutions on TF32 units",
        free_lunch=True,
        refuse=_refuse_tf32,
        prepare=_prepare_tf32,
    ),
    Method(
        name="kernels",
        summary="hand-written kernels where the family has them",
        free_lunch=True,
        refuse=_refuse_kernels,
    ),
)

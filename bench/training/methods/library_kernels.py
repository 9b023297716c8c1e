"""Kernels that libraries bring: TF32 units, fused attention or selective scan, FlexAttention.

Which hand-written kernel the method "kernels" takes depends on the family, which builds it (`Family.build`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, older_than
from bench.training.models import Model, family_of

if TYPE_CHECKING:
    from torch import nn

MIN_HEAD_WIDTH = 16  # elements: what tensor cores multiply at once


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
    return family.missing_kernels(target.device, target.has)


def _refuse_flex_attention(model: Model, target: Target) -> str | None:
    if model.family != "vit":
        return "known to pay for ViT alone: attention without a mask, in fp32"
    if model.recipe.precision != "fp32":
        return "in half precision the usual kernels use tensor cores"
    if model.architecture.get("attention_probs_dropout_prob"):
        return "FlexAttention has no dropout"
    a = family_of(model).complete(model)
    width = a["hidden_size"] // a["num_attention_heads"]
    if width < MIN_HEAD_WIDTH:
        return f"FlexAttention takes heads of {MIN_HEAD_WIDTH} and more, these have {width}"
    if target.device == "cpu":
        return "FlexAttention trains on GPUs alone"
    if older_than(target, 8.0):
        return f"it pays by TF32, which needs compute capability 8.0, not {target.compute_capability}"
    return None


def _apply_flex_attention(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.attention import flex_attention

    whole.model.set_attn_implementation(flex_attention())


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
    Method(
        name="flex-attention",  # in fp32 on tensor cores, which PyTorch's other fp32 kernels leave idle
        summary="attention by FlexAttention's Triton kernels, in TF32 where the recipe is fp32",
        not_exported_to={
            "standalone": (
                "flex-attention is registered and tuned by bench: without it attention in fp32 leaves "
                "tensor cores idle, and a step takes longer than measured"
            ),
        },
        only_faster=True,
        free_lunch=True,
        requires={
            "compilation": "flex-attention is slow unless it is compiled: add compile or compile-blocks"
        },
        refuse=_refuse_flex_attention,
        apply=_apply_flex_attention,
    ),
)

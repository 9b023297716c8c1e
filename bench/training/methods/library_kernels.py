"""Kernels that libraries bring: TF32 units, fused attention or selective scan, FlexAttention.

Which hand-written kernel the method "kernels" takes depends on the family, which builds it (`Family.build`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, looking_for, older_than
from bench.training.models import Model, family_of
from bench.training.models.full_attention import MIN_HEAD_WIDTH
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import nn


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


def _refuse_flex_attention(model: Model, target: Target) -> str | None:
    if model.recipe.precision != "fp32":
        return "in half precision the usual kernels use tensor cores"
    if reason := _why_no_full_attention(model):
        return reason
    width = _head_width(model)
    if width is None:
        return f"bench cannot read the width of the heads of {model.family}"
    if width < MIN_HEAD_WIDTH:
        return f"FlexAttention takes heads of {MIN_HEAD_WIDTH} and more, these have {width}"
    if target.device == "cpu":
        return "FlexAttention trains on GPUs alone"
    if older_than(target, 8.0):
        return f"it pays by TF32, which needs compute capability 8.0, not {target.compute_capability}"
    return None


def _why_no_full_attention(model: Model) -> str | None:
    """Return why attention needs more than queries, keys and values of equally many heads; None if not."""
    if model.recipe.documents:
        return "FlexAttention is not told where documents end"
    family, mapping = family_of(model), model.recipe.aim.mapping
    given = family.complete(model)
    of_patches = "images" in model.recipe.aim.data and family.operation_shapes(model).query_elements > 0
    # Formulas of a family count attention to all patches of an image, so that its source is not needed.
    if not of_patches and (reason := transformers_source.why_no_full_attention(model.family, mapping)):
        return reason
    if transformers_source.attention_dropout(model.family, mapping, given):
        return "FlexAttention has no dropout"
    heads, shared = (
        transformers_source.field(model.family, f"num_{kind}_heads", given)
        for kind in ("attention", "key_value")
    )
    return f"{heads} heads share {shared} of keys and values" if shared not in (None, heads) else None


def _head_width(model: Model) -> int | None:
    given = family_of(model).complete(model)
    width, hidden, heads = (
        transformers_source.field(model.family, name, given)
        for name in ("head_dim", "hidden_size", "num_attention_heads")
    )
    if isinstance(width, int | float):
        return int(width)
    whole = isinstance(hidden, int | float) and isinstance(heads, int | float)
    return int(hidden // heads) if whole else None


def _find_flex_attention(model: Model, whole: nn.Module) -> None:
    from bench.training.models.full_attention import require_full_attention

    with looking_for("flex-attention", model):
        require_full_attention(whole.model, model)


def _apply_flex_attention(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.full_attention import flex_attention

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
        find=_find_flex_attention,
        apply=_apply_flex_attention,
    ),
)

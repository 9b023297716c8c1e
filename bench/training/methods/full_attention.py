"""Attention of all positions to all others in TF32, for recipes in fp32: bench's kernels, or FlexAttention.

PyTorch's other kernels for fp32 leave tensor cores idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, looking_for, older_than, why_not_hopper
from bench.training.models import Model, family_of
from bench.training.models.full_attention import MIN_HEAD_WIDTH, OWN_HEAD_WIDTHS
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import nn

FULL_ATTENTION = "full-attention"  # the method's name


def _refuse_full_attention(model: Model, target: Target) -> str | None:
    if reason := _why_no_full_attention(model):
        return reason
    width = _head_width(model)
    if width not in OWN_HEAD_WIDTHS:
        *some, last = OWN_HEAD_WIDTHS
        wanted = f"{', '.join(map(str, some))} or {last}"
        return f"its kernels take heads of {wanted} elements, and these have {width or 'an unknown number'}"
    return why_not_hopper(target)


def _refuse_flex_attention(model: Model, target: Target) -> str | None:
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
    if model.recipe.precision != "fp32":
        return "in half precision the usual kernels use tensor cores"
    if model.recipe.documents:
        return "such kernels are not told where documents end"
    family, mapping = family_of(model), model.recipe.aim.mapping
    given = family.complete(model)
    of_patches = "images" in model.recipe.aim.data and family.operation_shapes(model).query_elements > 0
    # Formulas of a family count attention to all patches of an image, so that its source is not needed.
    if not of_patches and (reason := transformers_source.why_no_full_attention(model.family, mapping)):
        return reason
    if transformers_source.attention_dropout(model.family, mapping, given):
        return "such kernels have no dropout"
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


def _find_full_attention(model: Model, whole: nn.Module) -> None:
    from bench.training.models.full_attention import attend_within, require_full_attention

    with looking_for(FULL_ATTENTION, model):
        require_full_attention(whole.model, model, attend_within)


def _apply_full_attention(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.full_attention import full_attention

    whole.model.set_attn_implementation(full_attention())


def _find_flex_attention(model: Model, whole: nn.Module) -> None:
    from bench.training.models.full_attention import attend_to_all, require_full_attention

    with looking_for("flex-attention", model):
        require_full_attention(whole.model, model, attend_to_all)


def _apply_flex_attention(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.full_attention import flex_attention

    whole.model.set_attn_implementation(flex_attention())


# A free lunch has the first of the two that a model can take, since both are in the group "attention".
METHODS = (
    Method(
        name=FULL_ATTENTION,
        summary="attention of all positions to all others by bench's Triton kernels, in TF32",
        not_exported_to={
            "standalone": (
                "full-attention is a Triton kernel of bench: without it attention in fp32 leaves tensor "
                "cores idle, and a step takes longer than measured"
            ),
        },
        only_faster=True,
        free_lunch=True,
        compiled_on_first_use=True,
        requires={
            "tf32": "full-attention multiplies in TF32: add tf32",
            "kernels": "full-attention replaces the fused attention of kernels: add kernels",
        },
        refuse=_refuse_full_attention,
        find=_find_full_attention,
        apply=_apply_full_attention,
    ),
    Method(
        name="flex-attention",
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

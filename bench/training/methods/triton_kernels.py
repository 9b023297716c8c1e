"""Parts of a model in Triton kernels of this project (bench/training/triton), which need an NVIDIA GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.training.methods.method import Method, Target, looking_for, refuse_cpu, unfit, why_not_hopper
from bench.training.models import Model, family_of
from bench.training.models.depthwise import SIDE
from bench.training.vendor import compiler_inside, transformers_source

if TYPE_CHECKING:
    from torch import nn

TRANSPOSED_FACTORS = "transposed-factors"  # the method's name
MAX_WIDTH = 4096  # elements of a row of norms, held in registers by one program; wider rows were not measured

# Functions that apply a method import its kernels, which import Triton, which needs a GPU.
_method = partial(
    Method,
    free_lunch=True,
    only_faster=True,
    compiled_on_first_use=True,
    no_adapters="bench's own kernels compute gradients of all weights, and most are frozen beside adapters",
)


def _refuse_rotary(model: Model, target: Target) -> str | None:
    if model.recipe.documents:
        return "its attention cannot be told where documents end"
    given = family_of(model).complete(model)
    reason = transformers_source.why_no_packed_rotary(model.family, model.recipe.aim.mapping, given)
    return reason or refuse_cpu(target)


def _find_rotary(model: Model, whole: nn.Module) -> None:
    from bench.training.models.packed_rotary import packed_rotary_of

    with looking_for("rotary", model):
        whole.packed_rotary = packed_rotary_of(whole.model, whole.blocks, model)


def _apply_rotary(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.packed_rotary import take_over
    from bench.training.triton.rotary import rotated

    take_over(whole.packed_rotary, rotated)


def _refuse_gelu(model: Model, target: Target) -> str | None:
    if reason := refuse_cpu(target):
        return reason
    given = family_of(model).complete(model)
    return transformers_source.why_no_biased_gelu(model.family, model.recipe.aim.mapping, given)


def _find_gelu(model: Model, whole: nn.Module) -> None:
    from bench.training.models.biased_gelu import gelu_layers_of

    with looking_for("gelu", model):
        whole.gelu_layers = gelu_layers_of(whole.model, model)


def _apply_gelu(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.biased_gelu import take_over
    from bench.training.triton.gelu import gelu

    take_over(whole.gelu_layers, gelu)


def _refuse_norms(model: Model, target: Target) -> str | None:
    given = family_of(model).complete(model)
    if reason := transformers_source.why_no_paired_norms(model.family, model.recipe.aim.mapping, given):
        return reason
    width = transformers_source.field(model.family, "hidden_size", given)
    if isinstance(width, int | float) and width > MAX_WIDTH:
        return _too_wide(width, model)
    return refuse_cpu(target)


def _too_wide(width: float, model: Model) -> str:
    return f"its kernels take {MAX_WIDTH:,} numbers a row at most; {model.name} has {width:,.0f}"


def _find_norms(model: Model, whole: nn.Module) -> None:
    from bench.training.models.paired_norms import paired_norms_of

    with looking_for("norms", model):
        whole.paired_norms = paired_norms_of(whole.model, whole.blocks, model)
    width = max(len(pair.first.weight) for pair in whole.paired_norms)
    if width > MAX_WIDTH:
        raise unfit("norms", model, _too_wide(width, model))


def _apply_norms(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.paired_norms import take_over
    from bench.training.triton.norms import NormsFunction

    take_over(whole.paired_norms, NormsFunction.apply)


def _refuse_depthwise(model: Model, target: Target) -> str | None:
    if "images" not in model.recipe.aim.data:
        return f"{model.name} has no depthwise convolutions of seven by seven"
    if _counts_depthwise(model):
        return refuse_cpu(target)
    return transformers_source.why_not_depthwise(model.family) or refuse_cpu(target)


def _counts_depthwise(model: Model) -> bool:
    """Whether the formulas of a model's family count depthwise convolutions of seven by seven."""
    return family_of(model).operation_shapes(model).filter_weights == SIDE**2


def _apply_depthwise(model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    from bench.training.models.depthwise import depthwise_in

    found = depthwise_in(whole)
    if not found:
        raise unfit("depthwise", model, "no module is a depthwise convolution of seven by seven")
    from bench.training.triton.depthwise import forward_of

    for conv in found:
        conv.forward = forward_of(conv)


def _refuse_transposed_factors(model: Model, target: Target) -> str | None:
    if model.recipe.precision != "fp32":
        return "in half precision tensor cores read factors in both orders at the same rate"
    return why_not_hopper(target)


def _apply_transposed_factors(_model: Model, whole: nn.Module, _blocks: list[nn.Module]) -> None:
    import torch

    from bench.training.models.transposed_factors import linear_layers_of, take_over

    compiler_inside.compute_once(torch.ops.bench.transposed.default)
    for layer in linear_layers_of(whole):
        take_over(layer)


METHODS = (
    _method(
        name="rotary",  # splits the projection into query, key and value, and rotates the first two
        summary="queries and keys rotated in Triton, in the layout that attention reads",
        not_exported_to={
            "standalone": (
                "rotary is a Triton kernel of bench: without it positions are rotated in several "
                "kernels, and a step takes longer than measured"
            ),
        },
        requires={"kernels": "rotary hands over to the attention of kernels: add kernels"},
        refuse=_refuse_rotary,
        find=_find_rotary,
        apply=_apply_rotary,
    ),
    _method(
        name="gelu",
        summary="GELU and the bias before it in Triton, each number read and written once",
        not_exported_to={
            "standalone": (
                "gelu is a Triton kernel of bench: without it bias and GELU read and write each "
                "number twice, and a step takes longer than measured"
            ),
        },
        refuse=_refuse_gelu,
        find=_find_gelu,
        apply=_apply_gelu,
    ),
    _method(
        name="norms",
        summary="both norms of a block in one Triton kernel, which reads their input once in each pass",
        not_exported_to={
            "standalone": (
                "norms is a Triton kernel of bench: without it each norm reads its input again, and a "
                "step takes longer than measured"
            ),
        },
        # Under autocast norms compute in fp32, and the layers after them read a half-precision copy.
        requires={"half-weights": "norms is for blocks in half precision throughout: add half-weights"},
        chooses_kernels=False,  # used with half-weights only, whose gain includes that of norms
        refuse=_refuse_norms,
        find=_find_norms,
        apply=_apply_norms,
    ),
    _method(
        name="depthwise",  # convolves, and computes both gradients, near the memory's rate
        summary="depthwise convolutions in Triton, channels innermost, added up in fp32",
        not_exported_to={
            "standalone": (
                "depthwise is a Triton kernel of bench: without it a step can take twice as long as measured"
            ),
        },
        refuse=_refuse_depthwise,
        apply=_apply_depthwise,
    ),
    _method(
        name=TRANSPOSED_FACTORS,
        summary="gradients in TF32 by products with transposed copies, which tensor cores read faster",
        not_exported_to={
            "standalone": (
                "transposed-factors is code of bench: without it products of gradients in TF32 take up to "
                "half as long again, and a step takes longer than measured"
            ),
        },
        requires={"tf32": "transposed-factors changes products in TF32 alone: add tf32"},
        refuse=_refuse_transposed_factors,
        apply=_apply_transposed_factors,
    ),
)

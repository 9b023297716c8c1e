"""Predicted bytes agree with the bytes that autograd keeps under CUDA's rules (see keeping.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.training.methods import ordered
from bench.training.models import Counted, Family, Flops, Model, Parts, Precision, families, known_models
from bench.training.models.footprint import (
    ACTIVATIONS,
    Block,
    BlockCall,
    CountedFootprint,
    Footprint,
    calls_of,
    order_of,
)
from bench.training.vendor import torch_inside
from tests.training.models.keeping import checkpointed, halved, kept_bytes_a_sample
from tests.training.models.test_contract import TINY, without_dropout

WIDER: dict[str, dict[str, Any]] = {
    "gpt_neox": {"num_attention_heads": 4, "use_parallel_residual": False},
    "roberta": {"num_attention_heads": 4},
    "mamba": {"state_size": 16, "hidden_size": 96},
    "convnext": {"depths": [2, 3], "hidden_sizes": [16, 48]},
    "vit": {"num_attention_heads": 4, "num_labels": 1000},
}
# Compared at their real shapes on fake tensors, without computing.
REAL = ("pythia-160m", "roberta-large", "vit-l", "convnext-xl")


def off_by(
    model: Model,
    family: Family,
    module: nn.Module,
    kernels: bool,
    checkpointing: bool,
    half_weights: bool = False,
) -> float:
    if half_weights:
        halved(module, model)
    if checkpointing:
        checkpointed(family.blocks(module))
    kept = kept_bytes_a_sample(family, module, model)
    named = {"kernels": kernels, "checkpointing": checkpointing, "half-weights": half_weights}
    setting = ordered(name for name, used in named.items() if used)
    return abs(family.kept_bytes(model, setting) / kept - 1)


def has_no_kernels(name: str) -> bool:
    return families()[known_models()[name].family].kernels is None


SMALL = [
    pytest.param(model, kernels, how, id=f"{model.name}-{'kernels' if kernels else 'eager'}-{how}")
    for model in TINY
    for kernels in (False, True)
    for how in ("fp32", "bf16", "half-weights")
    if not (kernels and families()[model.family].missing_kernels("cpu"))
    if not (how == "half-weights" and families()[model.family].keeps_fp32_weights)
]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("wider", [False, True], ids=["tiny", "wider"])
@pytest.mark.parametrize(("model", "kernels", "precision"), SMALL)
def test_small_models(
    model: Model,
    wider: bool,
    precision: Precision | Literal["half-weights"],
    kernels: bool,
    checkpointing: bool,
) -> None:
    family = families()[model.family]
    # The CPU has no fused attention with dropout and falls back to plain matrices.
    model = without_dropout(model) if kernels else model
    changed = {**model.architecture, **WIDER[model.family]} if wider else model.architecture
    half_weights = precision == "half-weights"
    recipe = replace(model.recipe, precision="bf16" if half_weights else precision)
    if model.family == "mamba":  # otherwise the convolution's tail is longer than the sequence
        recipe = replace(recipe, sequence_length=24)
    model = replace(model, architecture=changed, recipe=recipe)
    module = family.build(model, kernels=kernels)
    assert off_by(model, family, module, kernels, checkpointing, half_weights) < 0.10


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["tiny-gpt-neox", "tiny-roberta", "tiny-vit", "tiny-convnext"])
def test_an_activation_keeps_what_its_formula_needs(name: str, precision: Precision) -> None:
    model = without_dropout(known_models()[name])
    family = families()[model.family]
    recipe, kernels = replace(model.recipe, precision=precision), family.kernels is not None

    def unpredicted(activation: str) -> float:
        changed = {**model.architecture, "hidden_act": activation}
        given = replace(model, architecture=changed, recipe=recipe)
        kept = kept_bytes_a_sample(family, family.build(given, kernels=kernels), given)
        return kept - family.kept_bytes(given, ("kernels",) if kernels else ())

    assert {unpredicted(activation) for activation in ACTIVATIONS} == {unpredicted("gelu")}


@pytest.mark.sweep
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("half_weights", [False, True], ids=["recipe", "half-weights"])
@pytest.mark.parametrize(
    ("name", "kernels"),
    [(n, k) for n in REAL for k in (False, True) if not (k and has_no_kernels(n))],
)
def test_real_shapes(name: str, kernels: bool, half_weights: bool, checkpointing: bool) -> None:
    model = known_models()[name]
    family = families()[model.family]
    model = without_dropout(model) if kernels else model
    if half_weights:
        model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    with torch.device("meta"):
        module = family.build(model, kernels=kernels)
    with FakeTensorMode():
        torch_inside.make_fake(module)
        assert off_by(model, family, module, kernels, checkpointing, half_weights) < 0.01


def test_a_compiled_block_that_recomputes_puts_gradients_where_it_frees() -> None:
    block = Block(2, entry=10, inside=100, backward=130)
    assert (block.freeing.inside, block.freeing.backward) == (100, 40)
    assert replace(block, backward=60).freeing.backward == 0
    counted = CountedFootprint(False, True, False, Footprint(0, (block,), 0))
    counts = Counted(Parts(0, ()), Flops(0), footprints=(counted, replace(counted, compiled=False)))
    model = known_models()["tiny-vit"]
    for setting, expected in (
        (("compile", "checkpointing"), 40),
        (("compile",), 130),
        (("checkpointing",), 130),
    ):
        found = counts.footprint(model, setting)
        assert found is not None
        assert found.blocks[0].backward == expected


def test_a_compiled_block_needs_no_more_than_the_compiler_writes() -> None:
    """Run operation by operation, the plain scan of Mamba 2 writes many times what the compiler writes."""
    eager = Block(2, entry=10, inside=100, backward=5000)
    block = replace(eager, tensors="10 100+0@2-15 70+0@12-14")
    way = CountedFootprint(False, True, False, Footprint(0, (block,), 0))
    counts = Counted(Parts(0, ()), Flops(0), footprints=(way, replace(way, compiled=False)))
    model = known_models()["tiny-vit"]
    for setting, expected in (
        (("compile-blocks",), 70),
        (("compile-blocks", "checkpointing"), 70),
        (("checkpointing",), 5000),
        ((), 5000),
    ):
        found = counts.footprint(model, setting)
        assert found is not None
        assert found.blocks[0].backward == expected
    assert replace(block, backward=60).fused.backward == 60
    assert eager.fused == eager


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_backward_pass_of_a_block_needs_nothing_that_was_kept_after_it(checkpointing: bool) -> None:
    large, small = Block(1, entry=10, inside=100, backward=50), Block(2, entry=4, inside=40, backward=20)
    in_order = Footprint(30, (large, small), 0, order="0x1@5 1x2@15")
    reversed_order = replace(in_order, order="1x2@5 0x1@15")
    peaks = [
        footprint.heights(checkpointing=checkpointing)[1]
        for footprint in (in_order, reversed_order, replace(in_order, order=""))
    ]
    # Without an order, everything that the model keeps counts in any backward pass.
    assert peaks == ([155, 173, 188] if checkpointing else [215, 245, 260])


def test_the_order_of_calls_is_read_as_it_was_written() -> None:
    calls = (BlockCall(0, 5), BlockCall(0, 5), BlockCall(1, 5), BlockCall(0, 7))
    assert order_of(calls) == "0x2@5 1x1@5 0x1@7"
    assert calls_of(order_of(calls)) == calls
    assert calls_of("") == ()

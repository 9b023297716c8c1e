"""The floor of a model: what is recorded of a pass, and how it is timed. Real torch, tiny models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.planning.manifest import resolve_models
from bench.records.floor import Floor
from bench.records.trial import Timing, Trial
from bench.runner.processes.jobs import FloorJob
from bench.runner.processes.worker import dispatch
from bench.runner.trial.device import Device
from bench.runner.trial.floor import aligned, along_sums, by_full_attention, measure_floor
from bench.runner.trial.recorded_computations import GROUPED, Computation, recorded
from bench.runner.trial.team import Team
from bench.training.methods import arithmetic
from bench.training.models import Model, counts_of, known_models
from bench.training.models.attention import fused_attention, register_fused_attention
from bench.training.setting import Setting

SAMPLES = 4
BRIEF = Timing(target_percent=50, measure_seconds=0.02, warmup_seconds=0.02, loss_steps=1)
LANGUAGE = {"objective": "causal-lm", "batch_size": 8, "steps": 9, "precision": "bf16", "sequence_length": 16}
SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
EXPERTS = {"moe_intermediate_size": 32, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}


def own(model_type: str, **fields: Any) -> Model:
    """Return a model as a manifest describes it."""
    architecture = {"model_type": model_type, **SIZES, "intermediate_size": 128, **fields}
    models, mistakes = resolve_models([{"name": "own", "architecture": architecture, "recipe": LANGUAGE}])
    assert not mistakes
    return models[0]


TINY = {name: model for name, model in known_models().items() if name.startswith("tiny-")}
LLAMA, MIXTURE = own("llama"), own("qwen3_moe", head_dim=16, **EXPERTS)


def of_kind(model: Model, kind: str, setting: Setting = ()) -> list[Computation]:
    """Return every computation of a kind in one pass, repeated ones as often as they run."""
    found = recorded(model, setting, SAMPLES)
    return [
        each
        for key, each in found.computations.items()
        for _ in range(found.counts[key])
        if each.kind == kind
    ]


def operations(product: Computation) -> int:
    """Count the operations of a matrix product from the shapes of its factors."""
    name = product.function.overloadpacket.__name__  # type: ignore[attr-defined]
    left, right = product.arguments[1:3] if name in ("addmm", "baddbmm") else product.arguments[:2]
    return 2 * int(prod(left.shape)) * int(right.shape[-1])


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (TINY["tiny-gpt-neox"], ()),
        (TINY["tiny-roberta"], ("kernels",)),
        (TINY["tiny-roberta"], ("kernels", "masked-head")),
        (TINY["tiny-vit"], ()),
        (LLAMA, ("kernels",)),
        (LLAMA, ("kernels", "half-weights")),
        (MIXTURE, ("kernels",)),
        (MIXTURE, ("kernels", "half-weights")),
    ],
    ids=lambda part: part.family if isinstance(part, Model) else "+".join(part) or "naive",
)
def test_the_products_of_a_pass_are_as_many_operations_as_the_model_has(
    model: Model, setting: Setting
) -> None:
    """Forward and backward together are three times the forward pass, of the setting's own arithmetic."""
    forward = arithmetic(setting, model, counts_of(model)).matmul
    assert sum(map(operations, of_kind(model, "products", setting))) == 3 * forward * SAMPLES


@pytest.mark.parametrize("setting", [("kernels",), ("kernels", "half-weights")])
@pytest.mark.parametrize("model", [LLAMA, MIXTURE], ids=["llama", "experts"])
def test_a_recipe_in_half_precision_multiplies_in_half_precision(model: Model, setting: Setting) -> None:
    products = of_kind(model, "products", setting)
    factors = [form for product in products for form in product.forms if form.dtype.is_floating_point]
    assert {form.dtype for form in factors} == {torch.bfloat16}


def test_products_of_odd_sizes_are_timed_with_aligned_rows() -> None:
    """Settings pad such rows too, so that products of odd sizes would be more than a pass needs."""
    odd = replace(LLAMA, architecture=LLAMA.architecture | {"vocab_size": 65})
    for model, words in ((odd, 72), (LLAMA, 64)):
        found = [aligned(product) for product in of_kind(model, "products", ("kernels",))]
        of_head = [
            product.arguments for product in found if any(words in form.shape for form in product.forms)
        ]
        assert len(of_head) >= 3  # the logits, and the gradients of features and weights
        for product in found:
            product.function(*(torch.zeros(form.shape) for form in product.forms))  # the factors fit
            assert all(size % 8 == 0 for form in product.forms for size in form.shape)
    unchanged = of_kind(LLAMA, "products", ("kernels",))
    assert [*map(aligned, unchanged)] == unchanged


def test_products_whose_factors_the_setting_transposes_are_timed_along_their_sums() -> None:
    products = of_kind(TINY["tiny-vit"], "products", ("tf32", "transposed-factors"))
    plain = of_kind(TINY["tiny-vit"], "products", ("tf32",))
    assert [each.forms for each in products] == [each.forms for each in plain]
    for found in map(along_sums, products):
        left, right = found.arguments[-2:]
        assert left.strides == (left.shape[1], 1) and right.strides == (1, right.shape[0])
    assert any(along_sums(each) != each for each in products)
    for product in of_kind(LLAMA, "products"):  # in half precision
        assert along_sums(product) == product


def test_attention_is_timed_by_the_kernels_of_full_attention_if_the_setting_has_them() -> None:
    model, setting = TINY["tiny-vit"], ("tf32", "kernels", "full-attention")
    for expected in of_kind(model, "attention", setting):
        found = by_full_attention(expected)
        tensors = [torch.randn(form.shape) for form in expected.forms]
        assert found.function is not expected.function
        torch.testing.assert_close(
            found.function(*tensors, **found.keywords), expected.function(*tensors, **expected.keywords)
        )
    floor = measure_floor(Trial(model, setting, 2, 1, 0, BRIEF), Device("cpu"), lambda _: None)
    assert floor.attention_seconds > 0
    assert all(by_full_attention(each) == each for each in of_kind(model, "products", setting))


def test_the_floor_of_experts_in_fp16_is_measured() -> None:
    model = replace(MIXTURE, recipe=replace(MIXTURE.recipe, precision="fp16"))
    products = [each for each in of_kind(model, "products") if each.function in GROUPED]
    assert {form.dtype for each in products for form in each.forms[:2]} == {torch.float16}
    assert len(products) == 2 * 2  # layers, products of a layer; each is timed with its backward pass
    floor = measure_floor(Trial(model, (), 2, 1, 0, BRIEF), Device("cpu"), lambda _: None)
    assert floor.products_seconds > 0


def test_experts_are_grouped_products() -> None:
    names = [each.function.overloadpacket.__name__ for each in of_kind(MIXTURE, "products")]  # type: ignore[attr-defined]
    assert names.count("_grouped_mm") == 2 * 2 * 3  # layers, products of a layer, forward and twice backward


def test_a_masked_head_runs_at_the_masked_positions_only() -> None:
    model = TINY["tiny-roberta"]
    words, masked = model.architecture["vocab_size"], SAMPLES * model.recipe.asked_per_sample
    for setting, rows in (
        (("kernels",), SAMPLES * model.recipe.units_per_sample),
        (("masked-head",), masked),
    ):
        shapes = [form.shape for each in of_kind(model, "products", setting) for form in each.forms]
        assert (rows, words) in shapes, "the gradient of the logits"


@pytest.mark.parametrize(("model", "causal"), [("tiny-gpt-neox", True), ("tiny-roberta", False)])
def test_attention_has_the_shape_the_mask_and_the_dropout_of_the_model(model: str, causal: bool) -> None:
    architecture = TINY[model].architecture
    heads, length = architecture["num_attention_heads"], TINY[model].recipe.units_per_sample
    found = of_kind(TINY[model], "attention")
    assert len(found) == architecture["num_hidden_layers"]
    for each in found:
        width = architecture["hidden_size"] // heads
        assert [form.shape for form in each.forms] == [(SAMPLES, heads, length, width)] * 3
        assert each.keywords["is_causal"] is causal
        assert (each.keywords["dropout_p"] > 0) is (model == "tiny-roberta")


def test_attention_that_a_model_calls_by_itself_is_recorded_too() -> None:
    assert len(of_kind(own("falcon"), "attention", ("kernels",))) == 2


def test_attention_with_a_window_has_a_mask() -> None:
    model = own("mistral", sliding_window=4, num_key_value_heads=2)
    (mask,) = {form for each in of_kind(model, "attention", ("kernels",)) for form in each.forms[3:]}
    assert mask.dtype == torch.bool
    assert not mask.trained


def test_on_a_gpu_a_window_has_two_numbers_instead_of_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda: SimpleNamespace(major=9))
    register_fused_attention.cache_clear()
    try:
        first, second = of_kind(own("mistral", sliding_window=4), "attention", ("kernels", "half-weights"))
    finally:
        monkeypatch.undo()
        register_fused_attention.cache_clear()
        fused_attention()
    assert first == second
    query, key, _, window, _, ends = first.arguments
    assert (query.shape, key.shape, window) == ((SAMPLES, 4, 16, 16), (SAMPLES, 8, 16, 16), (3, 0))
    assert query.dtype == torch.bfloat16 and query.trained and ends is None


def test_every_convolution_runs_forward_and_backward() -> None:
    names = [each.function.overloadpacket.__name__ for each in of_kind(TINY["tiny-convnext"], "convolutions")]  # type: ignore[attr-defined]
    assert names.count("convolution") == names.count("convolution_backward") > 2


def test_a_mamba_mixer_has_a_convolution_and_a_scan() -> None:
    model = TINY["tiny-mamba"]
    layers = model.architecture["num_hidden_layers"]
    inner = 2 * model.architecture["hidden_size"]
    for kind in ("convolutions", "scans"):
        found = of_kind(model, kind)
        assert len(found) == layers
        assert all(each.forms[0].shape == (SAMPLES, inner, model.recipe.units_per_sample) for each in found)


@pytest.mark.parametrize("model", [*TINY.values(), LLAMA, MIXTURE], ids=lambda model: model.family)
def test_a_floor_has_a_time_for_each_kind_of_computation_that_the_model_has(model: Model) -> None:
    trial = Trial(model, (), 2, 1, 0, BRIEF)
    floor = measure_floor(trial, Device("cpu"), lambda _: None)
    assert floor.passes >= 1
    kinds = {each.kind for each in recorded(model, (), 2).computations.values()}
    assert floor.parts.keys() == kinds
    assert all(seconds > 0 for seconds in floor.parts.values())
    assert floor.pass_seconds == pytest.approx(sum(floor.parts.values()))


def test_a_worker_measures_a_floor(tmp_path: Any) -> None:
    trial = Trial(TINY["tiny-gpt-neox"], (), 2, 1, 0, BRIEF)
    phases: list[Mapping[str, Any]] = []
    job = FloorJob(trial=trial, device="cpu", gpus=1)
    final = dispatch(job, Device("cpu"), Team(), tmp_path, phases.append)
    assert Floor(**final["floor"]).pass_seconds > 0
    assert [event["phase"] for event in phases] == ["record", "warm-up", "measure"]


def test_a_short_trial_has_a_short_floor() -> None:
    """The time for a floor is never longer than the time that the manifest gives a trial."""
    model = TINY["tiny-vit"]
    brief = Trial(model, (), 1, 1, 0, replace(BRIEF, measure_seconds=1e-9, warmup_seconds=1e-9))
    assert measure_floor(brief, Device("cpu"), lambda _: None).passes == 1

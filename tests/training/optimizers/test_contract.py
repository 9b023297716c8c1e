"""The contract of every optimizer, and its use by planning, memory and export."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from bench.base.errors import Mistake
from bench.base.strict_json import from_json, to_json
from bench.export import KINDS
from bench.planning.memory_prediction import moment_bytes, predict_bytes
from bench.training.methods import Target, free_lunch, memory_saving_settings, not_exported, refusal
from bench.training.models import Model, Parts, Recipe, known_models
from bench.training.models.own_models import resolve_inline
from bench.training.models.recipes import LIMITS
from bench.training.optimizers import OPTIMIZERS, Adam, AdamW8bit, Muon

H100 = Target("cuda", 2, 80 * 2**30, "NVIDIA H100", "9.0", elsewhere=True)
NAMES = pytest.mark.parametrize("name", OPTIMIZERS)


def optimizer_of(name: str, **changes: Any) -> Any:
    return OPTIMIZERS[name](name, 1e-3, 0.9, 0.95, 1e-8, 0.1, **changes)


def model_with(name: str, model: str = "pythia-160m") -> Model:
    known = known_models()[model]
    return replace(known, recipe=replace(known.recipe, optimizer=optimizer_of(name)))


@NAMES
def test_a_recipe_is_read_back_with_its_optimizer(name: str) -> None:
    recipe = model_with(name).recipe
    assert from_json(Recipe, to_json(recipe)) == recipe


@NAMES
def test_every_number_of_an_optimizer_has_limits(name: str) -> None:
    for field in fields(OPTIMIZERS[name]):
        value = getattr(optimizer_of(name), field.name)
        assert field.name in LIMITS or isinstance(value, (str, bool)), field.name


@NAMES
def test_reasons_are_words_about_things_that_exist(name: str) -> None:
    kind = OPTIMIZERS[name]
    assert set(kind.not_sharded_by) <= {"zero", "fsdp"}
    assert set(kind.not_exported_to) <= set(KINDS)
    assert all(len(reason) > 20 for reason in [*kind.not_sharded_by.values(), *kind.not_exported_to.values()])


@NAMES
@pytest.mark.parametrize("fused", [False, True])
def test_every_weight_with_a_gradient_is_updated_once(name: str, fused: bool) -> None:
    torch.manual_seed(0)
    shapes = [(8, 4), (4, 8), (3, 4, 2, 2), (2, 4, 8), (100, 50), (5,), ()]
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = optimizer_of(name).make(weights, [1, 1, 1, 2, 0, 0, 0], fused=fused)
    before = [weight.detach().clone() for weight in weights]
    for weight in weights[1:]:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert torch.equal(weights[0], before[0])
    for weight, old in zip(weights[1:], before[1:], strict=True):
        assert 0 < float((weight - old).abs().max().detach()) < 0.1
    assert set(optimizer.state) == set(weights[1:])
    assert sorted(map(id, weights)) == sorted(id(w) for g in optimizer.param_groups for w in g["params"])


PARTS = Parts(outside=1000, blocks=(256_000,) * 4, counted_matrices=1_000_000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam", 8 * 1_025_000),
        ("adamw", 8 * 1_025_000),
        ("adamw-8bit", 2 * 1_025_000 + 8 * 4004),
        ("muon", 4 * 1_000_000 + 8 * 25_000),
    ],
)
def test_the_moments_of_a_model(name: str, expected: int) -> None:
    assert moment_bytes(model_with(name), PARTS) == expected


@pytest.mark.parametrize("name", ["adamw", "adamw-8bit", "muon"])
@pytest.mark.parametrize("tiny", ["tiny-gpt-neox", "tiny-vit"])
def test_predicted_moments_are_those_of_the_built_optimizer(name: str, tiny: str) -> None:
    """The difference is at most that of small weights, whose moments stay in fp32."""
    from bench.runner.trial.training_loop import WithLoss, make_moments, make_optimizer
    from bench.training.models import family_of

    model = model_with(name, tiny)
    family = family_of(model)
    whole = WithLoss(family.build(model, kernels=False))
    whole.blocks = tuple(family.blocks(whole.model))
    optimizer = make_optimizer(whole.parameters(), model.recipe, False, whole)
    make_moments(optimizer)
    built = sum(
        t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim() or t.numel() > 1
    )
    assert moment_bytes(model, family.parameters(model)) == pytest.approx(built, rel=0.15)


def test_less_memory_is_predicted_with_smaller_moments() -> None:
    adam, small, muon = (
        predict_bytes(model_with(name), ("half-weights",), 8, 1) for name in ("adam", "adamw-8bit", "muon")
    )
    assert adam
    assert small
    assert muon
    assert small < muon < adam


@pytest.mark.parametrize("name", ["muon", "adamw-8bit"])
def test_sharding_is_refused_with_a_reason_and_replicas_are_not(name: str) -> None:
    for setting in memory_saving_settings(2):
        reason = refusal(setting, model_with(name), H100)
        sharded = any(method.startswith(("zero", "fsdp")) for method in setting)
        assert (reason is not None) == sharded, (setting, reason)
    for setting in (("half-weights",), free_lunch(model_with(name), H100), ("checkpointing",)):
        assert refusal(setting, model_with(name), H100) is None, setting


def test_muon_needs_a_gpu_that_computes_in_bf16() -> None:
    volta = replace(H100, gpus=1, compute_capability="7.0")
    assert "muon computes in bf16" in (refusal((), model_with("muon"), volta) or "")
    assert refusal((), model_with("adamw-8bit"), volta) is None


def test_without_a_compiler_the_compiled_update_is_left_out_on_a_gpu_alone() -> None:
    one = replace(H100, gpus=1)
    for name, fused in (("adamw", True), ("muon", True), ("adamw-8bit", False)):
        assert ("fused-optimizer" in free_lunch(model_with(name), one, compiled=False)) == fused
    assert "fused-optimizer" in free_lunch(model_with("adamw-8bit"), one)
    cpu = Target("cpu", 1, 2**34)
    assert "fused-optimizer" in free_lunch(model_with("adamw-8bit"), cpu, compiled=False)


def test_an_export_is_refused_or_has_the_same_optimizer() -> None:
    assert not_exported("deepspeed", (), model_with("adam")) is None
    for name in ("muon", "adamw-8bit"):
        assert "not tested" in (not_exported("deepspeed", (), model_with(name)) or "")
        assert not_exported("accelerate", (), model_with(name)) is None


def read(optimizer: Any) -> Model | list[Mistake]:
    recipe = {"batch_size": 8, "steps": 100, "precision": "fp32", "sequence_length": 16}
    architecture = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4}
    given = {"name": "mine", "architecture": architecture, "recipe": recipe | {"optimizer": optimizer}}
    return resolve_inline(given, "")


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("muon", Muon("muon", 3e-4, 0.9, 0.95, 1e-8, 0.1)),
        ({"name": "muon", "momentum": 0.9, "nesterov": False},
         Muon("muon", 3e-4, 0.9, 0.95, 1e-8, 0.1, momentum=0.9, nesterov=False)),
        ({"name": "muon", "adjust_lr": "original", "learning_rate": 0.02, "adamw_learning_rate": 3e-4},
         Muon("muon", 0.02, 0.9, 0.95, 1e-8, 0.1, adjust_lr="original", adamw_learning_rate=3e-4)),
        ("adamw-8bit", AdamW8bit("adamw-8bit", 3e-4, 0.9, 0.95, 1e-8, 0.1)),
        ({}, Adam("adamw", 3e-4, 0.9, 0.95, 1e-8, 0.1)),
    ],
)  # fmt: skip
def test_a_name_or_fields_of_it_make_an_optimizer(optimizer: Any, expected: Any) -> None:
    model = read(optimizer)
    assert isinstance(model, Model), model
    assert model.recipe.optimizer == expected


@pytest.mark.parametrize(
    ("optimizer", "path", "words"),
    [
        ("muonn", "name", '"muonn" does not fit; nearest: "muon"'),
        ("adamw8bit", "name", 'nearest: "adamw-8bit"'),
        ({"name": ["muon"]}, "name", "does not fit"),
        ({"name": None}, "name", "null does not fit"),
        ({"name": 3}, "name", "3 does not fit"),
        (3, "", "3 is not an object"),
        (None, "", "null is not an object"),
        (["muon"], "", "is not an object"),
        ({"momentum": 0.9}, "momentum", "is a field of muon, not of adamw"),
        ({"name": "adamw-8bit", "ns_steps": 5}, "ns_steps", "is a field of muon, not of adamw-8bit"),
        ({"name": "muon", "momentun": 0.9}, "momentun", 'no such field; nearest: "momentum"'),
        ({"name": "muon", "momentum": 1}, "momentum", "1 is more than allowed"),
        ({"name": "muon", "momentum": -0.1}, "momentum", "less than allowed"),
        ({"name": "muon", "momentum": "big"}, "momentum", "is not a number"),
        ({"name": "muon", "ns_steps": 0}, "ns_steps", "0 is less than allowed"),
        ({"name": "muon", "ns_steps": 10**6}, "ns_steps", "more than allowed"),
        ({"name": "muon", "ns_steps": 2.5}, "ns_steps", "is not a whole number"),
        ({"name": "muon", "nesterov": 1}, "nesterov", "1 is not true or false"),
        ({"name": "muon", "adjust_lr": "match"}, "adjust_lr", "match_rms_adamw"),
        ({"name": "muon", "adamw_learning_rate": 0}, "adamw_learning_rate", "less than allowed"),
        ({"name": "muon", "learning_rate": True}, "learning_rate", "is not a number"),
    ],
)
def test_bad_input_is_named_with_what_is_allowed(optimizer: Any, path: str, words: str) -> None:
    found = read(optimizer)
    assert isinstance(found, list), found
    (mistake,) = found
    assert mistake.path == f"/recipe/optimizer/{path}".rstrip("/")
    assert words in f"{mistake.found}; {mistake.allowed}"

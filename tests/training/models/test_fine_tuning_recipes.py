"""Recipes of fine-tuning: adapters, and a length in epochs of a data set."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.errors import Mistake
from bench.base.strict_json import from_json, to_json
from bench.bundle.held_to_manifest import _contradiction, _stated_of_models
from bench.planning.manifest import resolve_models
from bench.training.models import Lora, Model, Recipe

LLAMA = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64}
RECIPE = {"objective": "causal-lm", "precision": "bf16", "sequence_length": 512, "batch_size": 128}
LORA = {"rank": 16, "targets": ["q_proj", "v_proj"]}


def entry(**recipe: Any) -> dict[str, Any]:
    return {"name": "mine", "architecture": LLAMA, "recipe": {**RECIPE, **recipe}}


def resolved(stated: Any) -> Model:
    (model,), mistakes = resolve_models([stated])
    assert mistakes == []
    return model


def mistakes_of(**recipe: Any) -> list[Mistake]:
    models, mistakes = resolve_models([entry(**recipe)])
    assert models == []
    return mistakes


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        ({"epochs": 3, "samples": 52_000}, 1_219),  # 1,218.75
        ({"epochs": 0.5, "samples": 256}, 1),
        ({"epochs": 1, "samples": 1}, 1),
        ({"epochs": 2, "samples": 128, "batch_size": None, "batch_tokens": 1024}, 128),
    ],
)
def test_epochs_become_steps_rounded_up(recipe: dict[str, Any], steps: int) -> None:
    stated = entry(**recipe)
    stated["recipe"] = {key: value for key, value in stated["recipe"].items() if value is not None}
    model = resolved(stated)
    assert model.recipe.steps == steps
    assert model.recipe.schedule.warmup_steps == steps // 100


def test_a_known_models_length_can_be_stated_in_epochs() -> None:
    model = resolved({"name": "llama-3.1-8b", "recipe": {"batch_size": 128, "epochs": 3, "samples": 52_002}})
    assert model.recipe.steps == 1_219
    assert "changed in the manifest: batch_size, epochs, samples" in model.recipe.source


@pytest.mark.parametrize(
    ("recipe", "place", "found"),
    [
        ({"epochs": 3}, "samples", "missing beside epochs"),
        ({"samples": 3}, "epochs", "missing beside samples"),
        ({"epochs": "3", "samples": 9}, "epochs", '"3" is not a number'),
        ({"epochs": 3, "samples": 2.5}, "samples", "2.5 is not a whole number"),
        ({"epochs": 0, "samples": 9}, "epochs", "0 is less than allowed"),
        ({"epochs": 3, "samples": 9, "steps": 9}, "steps", "means the same as epochs with samples"),
        ({"epochs": 3, "samples": 9, "tokens": 9}, "tokens", "means the same as epochs with samples"),
        ({"steps": 9, "lora": "all-linear"}, "lora", '"all-linear" is not an object'),
        ({"steps": 9, "lora": {"rank": 4}}, "lora/targets", "missing"),
        ({"steps": 9, "lora": {"targets": "all-linear"}}, "lora/rank", "missing"),
        ({"steps": 9, "lora": LORA | {"rank": 0}}, "lora/rank", "0 is less than allowed"),
        ({"steps": 9, "lora": LORA | {"rank": 8.0}}, "lora/rank", "8.0 is not a whole number"),
        ({"steps": 9, "lora": LORA | {"alpha": 0}}, "lora/alpha", "0 is less than allowed"),
        ({"steps": 9, "lora": LORA | {"dropout": 1}}, "lora/dropout", "1 is more than allowed"),
        ({"steps": 9, "lora": LORA | {"targets": "q_proj"}}, "lora/targets", '"q_proj" is not a list'),
        ({"steps": 9, "lora": LORA | {"targets": []}}, "lora/targets", "an empty list"),
        ({"steps": 9, "lora": LORA | {"targets": [3]}}, "lora/targets/0", "3 is not a name"),
        ({"steps": 9, "lora": LORA | {"targets": ["q", "q"]}}, "lora/targets/1", '"q" stands twice'),
        ({"steps": 9, "lora": LORA | {"r": 4}}, "lora/r", "no such field"),
        ({"steps": 9, "lora": LORA, "precision": "fp8"}, "precision", "fp8 multiplies with gradients"),
        ({"steps": 9, "lora": LORA, "optimizer": "muon"}, "optimizer", "muon updates matrices of blocks"),
    ],
)
def test_mistakes_are_named_with_their_places(recipe: dict[str, Any], place: str, found: str) -> None:
    (mistake,) = mistakes_of(**recipe)
    assert (mistake.path, mistake.found[: len(found)]) == (f"/models/0/recipe/{place}", found)


def test_mamba_has_no_adapters() -> None:
    stated = {"name": "tiny-mamba", "recipe": {"lora": LORA}}
    _, (mistake,) = resolve_models([stated])
    assert mistake.path == "/models/0/recipe/lora"
    assert "would leave adapters out" in mistake.found


def test_alpha_is_twice_the_rank_and_nothing_is_dropped_by_default() -> None:
    lora = resolved(entry(steps=9, lora=LORA)).recipe.lora
    assert lora == Lora(16, 32.0, 0.0, ("q_proj", "v_proj"))
    assert resolved(entry(steps=9, lora=None)).recipe.lora is None


def test_recipes_without_adapters_have_the_json_that_they_always_had() -> None:
    """Trials are named by a digest of it, so bundles of earlier versions would not verify otherwise."""
    plain = resolved(entry(steps=9)).recipe
    assert "lora" not in to_json(plain)
    assert from_json(Recipe, to_json(plain)) == plain
    adapted = resolved(entry(steps=9, lora=LORA)).recipe
    assert to_json(adapted)["lora"]["targets"] == ["q_proj", "v_proj"]
    assert from_json(Recipe, to_json(adapted)) == adapted


@pytest.mark.parametrize("written", ["a paper", "a paper; changed in the manifest: epochs"])
def test_the_verifier_knows_the_remark_that_bench_adds_to_a_stated_source(written: str) -> None:
    stated = {"name": "gpt2", "recipe": {"epochs": 1, "samples": 512, "source": written}}
    model = resolved(stated)
    assert model.recipe.source == f"{written}; changed in the manifest: epochs, samples, source"
    for claimed, place in ((stated, None), (with_source(stated, "a letter"), "gpt2/recipe/source")):
        compared = _stated_of_models({"gpt2": claimed}, (model,))
        found = [_contradiction(theirs, ours, name) for name, theirs, ours in compared]
        assert next(filter(None, found), None) == place


def with_source(stated: dict[str, Any], source: str) -> dict[str, Any]:
    return {**stated, "recipe": {**stated["recipe"], "source": source}}


@pytest.mark.parametrize(
    ("stated", "actual", "place"),
    [
        (entry(steps=9, lora=LORA), entry(steps=9, lora=LORA | {"alpha": 32, "dropout": 0.0}), None),
        (entry(steps=9, lora=LORA), entry(steps=9, lora=LORA | {"rank": 8}), "mine/recipe/lora/rank"),
        (entry(steps=9, lora=LORA), entry(steps=9), "mine/recipe/lora"),
        (entry(steps=9), entry(steps=9, lora=LORA), "mine/recipe/lora"),
        (entry(epochs=1, samples=1280), entry(steps=10), None),
        (entry(epochs=1, samples=1281), entry(steps=10), "mine/recipe/steps"),
    ],
)
def test_the_verifier_holds_results_to_the_adapters_and_epochs_of_the_manifest(
    stated: Any, actual: Any, place: str | None
) -> None:
    compared = _stated_of_models({"mine": stated}, (resolved(actual),))
    found = [_contradiction(theirs, ours, name) for name, theirs, ours in compared]
    assert next(filter(None, found), None) == place

"""A recipe's batch and length in tokens: converted to samples and steps, and held by the verifier."""

from __future__ import annotations

from typing import Any

import pytest

from bench.bundle.held_to_manifest import _contradiction, _stated_of_models
from bench.planning.manifest import resolve_models
from bench.training.models import Model
from bench.training.models.recipes import in_samples

LLAMA = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64}
RECIPE = {"objective": "causal-lm", "precision": "bf16", "sequence_length": 1024}


def entry(**recipe: Any) -> dict[str, Any]:
    return {"name": "mine", "architecture": LLAMA, "recipe": RECIPE | recipe}


def resolved(**recipe: Any) -> Model:
    (model,), mistakes = resolve_models([entry(**recipe)])
    assert mistakes == []
    return model


@pytest.mark.parametrize(
    ("recipe", "batch", "steps"),
    [
        ({"batch_tokens": 524_288, "tokens": 300e9}, 512, 572_205),
        ({"batch_tokens": 1024, "tokens": 1}, 1, 1),
        ({"batch_size": 2, "tokens": 4097}, 2, 3),
        ({"batch_tokens": 2048, "steps": 7}, 2, 7),
    ],
)
def test_tokens_become_samples_and_steps(recipe: dict[str, Any], batch: int, steps: int) -> None:
    model = resolved(**recipe)
    assert (model.recipe.batch_size, model.recipe.steps) == (batch, steps)


@pytest.mark.parametrize(
    ("recipe", "path", "found"),
    [
        ({"batch_size": 2, "tokens": "3e9"}, "tokens", '"3e9" is not a number'),
        ({"batch_size": 2, "tokens": 0}, "tokens", "0 is less than allowed"),
        ({"batch_size": 2, "steps": 3, "tokens": 9}, "tokens", "means the same as steps"),
        ({"batch_tokens": 1000, "steps": 3}, "batch_tokens", "1000 is no multiple of the 1024 tokens"),
        ({"batch_tokens": 512, "tokens": 9e9}, "batch_tokens", "512 is no multiple"),
        ({"batch_size": 0, "tokens": 9e9}, "batch_size", "0 is less than allowed"),
        ({"tokens": 9e9}, "batch_size", "missing"),
        ({"batch_size": 1, "tokens": 1e18}, "steps", "more than allowed"),
    ],
)
def test_a_mistake_is_named_once(recipe: dict[str, Any], path: str, found: str) -> None:
    models, mistakes = resolve_models([entry(**recipe)])
    assert models == []
    (mistake,) = mistakes
    assert mistake.path == f"/models/0/recipe/{path}"
    assert found in mistake.found


def test_a_known_model_s_length_may_be_changed_in_tokens() -> None:
    (gpt2,), mistakes = resolve_models([{"name": "gpt2", "recipe": {"tokens": 1e9}}])
    assert mistakes == []
    assert gpt2.recipe.steps == 1908
    assert gpt2.recipe.source.endswith("changed in the manifest: tokens")


def test_images_have_no_tokens() -> None:
    models, (mistake,) = resolve_models([{"name": "vit-b-16", "recipe": {"tokens": 1e9}}])
    assert models == []
    assert mistake.found == "needs a sequence_length"


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({}, None),
        ({"tokens": 600e9}, "mine/recipe/steps"),
        ({"batch_tokens": 1024}, "mine/recipe/batch_size"),
    ],
)
def test_a_verifier_holds_results_against_tokens(changed: dict[str, Any], place: str | None) -> None:
    model = resolved(batch_tokens=524_288, tokens=300e9)
    stated = {"mine": entry(**{"batch_tokens": 524_288, "tokens": 300e9, **changed})}
    found = [_contradiction(s, actual, where) for where, s, actual in _stated_of_models(stated, (model,))]
    assert found[0] == place


@pytest.mark.parametrize("recipe", [{"tokens": [1]}, {"batch_tokens": None}, {"tokens": True}])
def test_a_stranger_s_values_of_any_type_do_no_harm(recipe: dict[str, Any]) -> None:
    _, mistakes = in_samples(recipe, {"sequence_length": 8, "batch_size": 2}, "")
    assert mistakes

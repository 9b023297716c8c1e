"""Models described in a manifest: accepted descriptions, and messages for refused ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.errors import Mistake
from bench.base.strict_json import canonical_json, from_json, to_json
from bench.training.models import Model, family_of, known_models
from bench.training.models.generic import TransformersFamily
from bench.training.models.own_models import override_recipe, resolve_inline
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule

pytestmark = pytest.mark.usefixtures("quick_children")

NEOX = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
WITHOUT_SIZE = {key: value for key, value in NEOX.items() if key != "hidden_size"}
RECIPE = {"batch_size": 512, "steps": 1000, "precision": "bf16", "sequence_length": 128}
LLAMA = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64}
IMAGES = {"batch_size": 8, "steps": 10, "precision": "fp32"}


def resolved(architecture: Any, recipe: Any, name: str = "mine") -> Model | list[Mistake]:
    return resolve_inline({"name": name, "architecture": architecture, "recipe": recipe}, "/models/0")


def accepted(architecture: Any, recipe: Any) -> Model:
    result = resolved(architecture, recipe)
    assert isinstance(result, Model), result
    return result


def test_a_family_with_a_file_completes_what_is_left_out() -> None:
    model = accepted(NEOX, RECIPE)
    assert family_of(model).name == "gpt_neox"
    assert model.architecture["vocab_size"] == 50432
    assert "model_type" not in model.architecture
    assert model.recipe.objective == "causal-lm"
    assert model.recipe.optimizer.name == "adamw"
    assert model.recipe.schedule == DecaySchedule("cosine", warmup_steps=10, final_ratio=0.1)
    assert family_of(model).parameters(model).total > 0


def test_a_published_configuration_goes_in_as_it_is() -> None:
    published = {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8,
        "num_hidden_layers": 16, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True,
        "use_parallel_residual": True, "vocab_size": 50304,
    }  # fmt: skip
    model = accepted(published, RECIPE)
    assert family_of(model).parameters(model) == family_of(model).parameters(known_models()["pythia-1b"])


def test_an_optimizer_may_be_a_name_alone_or_part_of_one() -> None:
    assert accepted(NEOX, RECIPE | {"optimizer": "adam"}).recipe.optimizer.name == "adam"
    changed = accepted(NEOX, RECIPE | {"optimizer": {"learning_rate": 1}}).recipe.optimizer
    assert changed == Adam("adamw", 1, 0.9, 0.95, 1e-8, 0.1)


def test_an_image_size_stands_once() -> None:
    vit = {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_labels": 10}
    assert accepted(vit, IMAGES).recipe.image_size == 32


def test_any_other_type_of_transformers_is_counted_when_it_runs() -> None:
    model = accepted(LLAMA, RECIPE | {"objective": "causal-lm"})
    family = family_of(model)
    assert isinstance(family, TransformersFamily)
    with pytest.raises(LookupError, match="counted when it runs"):
        family.parameters(model)


BAD: list[tuple[Any, Any, list[tuple[str, str, str]]]] = [
    # architecture, recipe, [(path below the model, what was found, what is allowed)]
    (
        WITHOUT_SIZE | {"hidden_sise": 64}, RECIPE,
        [("architecture/hidden_sise", "no such field", "hidden_size")],
    ),
    (NEOX | {"vocab_size": "many"}, RECIPE, [("architecture/vocab_size", '"many"', "whole number")]),
    (NEOX | {"vocab_size": 0}, RECIPE, [("architecture/vocab_size", "0 is less", "from 1")]),
    (NEOX | {"vocab_size": True}, RECIPE, [("architecture/vocab_size", "true", "whole number")]),
    (NEOX | {"hidden_dropout": 2}, RECIPE, [("architecture/hidden_dropout", "more than", "0 to 1")]),
    (NEOX | {"attention_bias": 1}, RECIPE, [("architecture/attention_bias", "1", "true or false")]),
    (NEOX | {"hidden_act": "gelv"}, RECIPE, [("architecture/hidden_act", "gelv", "gelu")]),
    (NEOX | {"num_attention_heads": 5}, RECIPE, [("architecture/num_attention_heads", "5", "divisor")]),
    (NEOX, RECIPE | {"sequence_length": 4096}, [("recipe/sequence_length", "4096", "2048")]),
    (NEOX, RECIPE | {"precision": "fp61"}, [("recipe/precision", "fp61", "fp16")]),
    (NEOX, RECIPE | {"batch_size": -1}, [("recipe/batch_size", "-1 is less", "from 1")]),
    (NEOX, RECIPE | {"batch_size": 1.5}, [("recipe/batch_size", "1.5", "whole number")]),
    (NEOX, RECIPE | {"batchsize": 1}, [("recipe/batchsize", "no such field", "batch_size")]),
    (NEOX, RECIPE | {"objective": "masked-lm"}, [("recipe/objective", "masked-lm", "causal-lm")]),
    (NEOX, RECIPE | {"image_size": 32}, [("recipe/image_size", "means nothing", "sequence_length")]),
    (NEOX, RECIPE | {"optimizer": {"lr": 1}}, [("recipe/optimizer/lr", "no such field", "learning_rate")]),
    (NEOX, RECIPE | {"optimizer": "sgd"}, [("recipe/optimizer/name", "sgd", "adam, adamw")]),
    (NEOX, RECIPE | {"schedule": 3}, [("recipe/schedule", "3 is not an object", "warmup_steps")]),
    (
        NEOX, RECIPE | {"schedule": {"warmup_steps": 2000}},
        [("recipe/schedule/warmup_steps", "2000 is more", "at most 1000")],
    ),
    (
        WITHOUT_SIZE | {"hidden_sise": 1, "vocab_size": 0}, {"steps": 0},
        [
            ("architecture/hidden_sise", "no such field", ""), ("architecture/vocab_size", "0", ""),
            ("recipe/batch_size", "missing", ""), ("recipe/precision", "missing", "bf16"),
            ("recipe/sequence_length", "missing", ""), ("recipe/steps", "0", ""),
        ],
    ),
    ({}, RECIPE, [("architecture/model_type", "missing", "gpt_neox")]),
    ({"model_type": 3}, RECIPE, [("architecture/model_type", "3", "gpt_neox")]),
    ({"model_type": "lama"}, RECIPE, [("architecture/model_type", "lama", "llama")]),
    (LLAMA, RECIPE, [("recipe/objective", "missing", "causal-lm")]),
    (
        {"model_type": "llama"}, RECIPE | {"objective": "causal-lm"},
        [("architecture/vocab_size", "missing", "whole number")],
    ),
    (
        {"model_type": "llama", "hidden_size": "64"},
        RECIPE | {"objective": "causal-lm", "precision": "bf17"},
        [
            ("architecture/vocab_size", "missing", "whole number"),
            ("architecture/hidden_size", '"64"', "whole number"), ("recipe/precision", "bf17", "bf16"),
        ],
    ),
    (
        NEOX | {"num_attention_heads": 5}, RECIPE | {"precision": "bf17"},
        [("architecture/num_attention_heads", "5", "divisor"), ("recipe/precision", "bf17", "bf16")],
    ),
    (
        NEOX | {"hidden_size": "64"}, RECIPE | {"schedule": {"warmup_steps": 2000}},
        [("architecture/hidden_size", '"64"', ""), ("recipe/schedule/warmup_steps", "2000 is more", "1000")],
    ),
    (
        {"model_type": "lama"}, RECIPE | {"precision": "bf17"},
        [("architecture/model_type", "lama", "llama"), ("recipe/precision", "bf17", "bf16")],
    ),
    (
        {"model_type": "roberta", "max_position_embeddings": 128}, RECIPE,
        [("recipe/sequence_length", "128 is more than the 126", "126")],
    ),
    (
        {"model_type": "vit", "image_size": 225}, IMAGES,
        [("architecture/patch_size", "16 does not divide 225", "divisor")],
    ),
    (
        {"model_type": "vit"}, IMAGES | {"image_size": 32},
        [("recipe/image_size", "32 is not the architecture's 224", "same")],
    ),
    (
        {"model_type": "convnext", "depths": [1, 2]}, IMAGES | {"image_size": 100},
        [("architecture/depths", "2 stages", "one entry"), ("recipe/image_size", "100", "multiple of 32")],
    ),
    (
        {"model_type": "convnext", "depths": [1, 2, 3, "x"], "hidden_sizes": 7, "image_size": 64}, IMAGES,
        [("architecture/depths/3", '"x"', ""), ("architecture/hidden_sizes", "7", "list")],
    ),
    (
        {"model_type": "mamba", "time_step_rank": "all"}, RECIPE,
        [("architecture/time_step_rank", '"all"', "whole number")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "recipe", "expected"), BAD)
def test_every_mistake_is_named_with_its_place(
    architecture: Any, recipe: Any, expected: list[tuple[str, str, str]]
) -> None:
    mistakes = resolved(architecture, recipe)
    assert isinstance(mistakes, list)
    assert sorted(m.path for m in mistakes) == sorted(f"/models/0/{path}" for path, _, _ in expected)
    for path, found, allowed in expected:
        mistake = next(m for m in mistakes if m.path == f"/models/0/{path}")
        assert found in mistake.found
        assert allowed in mistake.allowed


def test_a_name_of_ours_cannot_be_taken() -> None:
    mistakes = resolved(NEOX, RECIPE, name="pythia-1b")
    assert isinstance(mistakes, list)
    assert [m.path for m in mistakes] == ["/models/0/name"]


def test_a_recipe_can_be_changed_in_part() -> None:
    model = known_models()["pythia-1b"]
    changed = override_recipe(model, {"batch_size": 512, "optimizer": {"epsilon": 1e-6}}, "/models/0/recipe")
    assert isinstance(changed, Model)
    assert (changed.recipe.batch_size, changed.recipe.steps) == (512, 143_000)
    assert changed.recipe.optimizer.epsilon == 1e-6
    assert changed.recipe.optimizer.learning_rate == model.recipe.optimizer.learning_rate
    assert changed.recipe.source.endswith("changed in the manifest: batch_size, optimizer")
    assert changed.architecture == model.architecture
    assert override_recipe(model, {}, "") == model


@pytest.mark.parametrize("recipe", [{"clip_norm": 1}, {"optimizer": {"learning_rate": 1, "weight_decay": 0}}])
def test_a_whole_number_stays_the_same_through_a_bundle(recipe: dict[str, Any]) -> None:
    """A trial's id is a digest of its bytes, so 1 and 1.0 would be two trials in a refused bundle."""
    changed = override_recipe(known_models()["pythia-1b"], recipe, "/")
    for model in (changed, accepted(NEOX, RECIPE | recipe)):
        assert isinstance(model, Model)
        again = from_json(Model, json.loads(canonical_json(to_json(model))))
        assert canonical_json(to_json(again)) == canonical_json(to_json(model))


def test_fewer_steps_shorten_the_warmup() -> None:
    changed = override_recipe(known_models()["pythia-1b"], {"steps": 100}, "/models/0/recipe")
    assert isinstance(changed, Model)
    assert changed.recipe.schedule.warmup_steps == 100


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"batch": 3}, "/models/0/recipe/batch"),
        ({"sequence_length": 4096}, "/models/0/recipe/sequence_length"),
        ({"objective": "masked-lm"}, "/models/0/recipe/objective"),
        ({"precision": None}, "/models/0/recipe/precision"),
        ({"steps": 10, "schedule": {"warmup_steps": 20}}, "/models/0/recipe/schedule/warmup_steps"),
    ],
)
def test_a_change_that_cannot_be_is_named(overrides: dict[str, Any], path: str) -> None:
    mistakes = override_recipe(known_models()["pythia-1b"], overrides, "/models/0/recipe")
    assert isinstance(mistakes, list)
    assert [m.path for m in mistakes] == [path]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*NEOX, "depths", "image_size", "hidden_sizes", "vocab_size", "num_labels", "time_step_rank"]
TYPES = ["gpt_neox", "roberta", "mamba", "convnext", "vit", "llama", "nothing"]
RECIPE_FIELDS = [*RECIPE, "objective", "optimizer", "schedule", "clip_norm", "masked_fraction", "image_size"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4),
    st.dictionaries(st.sampled_from(RECIPE_FIELDS), anything, max_size=4),
)
def test_whatever_stands_there_gets_an_answer(
    model_type: str, fields: dict[str, Any], recipe: dict[str, Any]
) -> None:
    size = {"image_size": 224} if model_type in ("convnext", "vit") else {"sequence_length": 8}
    complete = {"batch_size": 1, "steps": 1, "precision": "fp32", **size, **recipe}
    match resolved({"model_type": model_type, **fields} | {"model_type": model_type}, complete):
        case Model() as model:
            json.dumps(dict(model.architecture))
            family = family_of(model)
            if not isinstance(family, TransformersFamily):
                assert family.parameters(model).total > 0
                assert family.forward_flops(model).total > 0
                assert max(family.activation_bytes(model, ())) > 0
        case mistakes:
            assert mistakes
            assert all(m.path.startswith("/models/0/") and m.found and m.allowed for m in mistakes)

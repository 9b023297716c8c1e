"""The recipes that half-weights accepts; test_equivalence.py compares its losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.planning.plan import guided_settings
from bench.training.methods import known_methods
from bench.training.models import Model, Precision, known_models
from tests.targets import H200
from tests.training.models.test_attention import DECODER, model_of

METHOD = known_methods()["half-weights"]


def in_half(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


@pytest.mark.parametrize("name", ["vit-l", "convnext-xl"])
def test_recipes_in_fp32_are_refused_and_the_same_architectures_in_half_precision_are_not(name: str) -> None:
    model = known_models()[name]
    assert METHOD.refuse(model, H200) == f"{name} trains in fp32"
    for precision in ("bf16", "fp16"):
        assert METHOD.refuse(in_half(model, precision), H200) is None
        assert any("half-weights" in setting for setting in guided_settings(in_half(model, precision), H200))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_family_may_say_that_its_weights_stay_in_fp32(precision: Precision) -> None:
    mamba = in_half(known_models()["mamba-2.8b"], precision)
    assert "Mamba's authors" in str(METHOD.refuse(mamba, H200))
    assert METHOD.refuse(known_models()["pythia-1b"], H200) is None
    assert METHOD.refuse(known_models()["roberta-large"], H200) is None
    assert METHOD.refuse(in_half(model_of("llama", "causal-lm", DECODER), precision), H200) is None

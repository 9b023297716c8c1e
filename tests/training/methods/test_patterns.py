"""The methods that are found by what modules compute are offered to the models of the table below."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bench import training
from bench.training.methods import known_methods
from bench.training.models import families, family_of, known_models
from bench.training.models.depthwise import depthwise_in
from bench.training.models.zoo import zoo_model, zoo_names
from tests.targets import H200

PYTHIAS = {"pythia-160m", "pythia-410m", "pythia-1b", "pythia-2.8b", "pythia-6.9b", "tiny-gpt-neox"}
# Models of the paper, their tiny versions, and models of the zoo.
MODELS: Mapping[str, set[str]] = {
    "rotary": PYTHIAS,
    "norms": PYTHIAS,
    "gelu": PYTHIAS
    | {"roberta-large", "tiny-roberta", "vit-l", "tiny-vit", "convnext-xl", "tiny-convnext"}
    | {"ast", "bart-large", "bert-base-uncased", "bert-large-uncased", "deberta-v3-base", "deit-base"}
    | {"simmim-vit-b", "swin-base", "swin-tiny", "vit-b-16", "wav2vec2-base", "whisper-large-v3"}
    | {"whisper-small"},
    "depthwise": {"convnext-xl", "tiny-convnext"},
    "flex-attention": {"vit-l", "tiny-vit"},  # other image models of the zoo train in half precision
}


@pytest.mark.parametrize("method", MODELS)
def test_a_method_is_offered_to_these_models(method: str) -> None:
    zoo = [entry.model for name in zoo_names() if (entry := zoo_model(name))]
    models = [*known_models().values(), *zoo]
    refuse = known_methods()[method].refuse
    assert {model.name for model in models if refuse(model, H200) is None} == MODELS[method]


def test_every_depthwise_convolution_of_convnext_is_taken() -> None:
    model = known_models()["convnext-xl"]
    with torch.device("meta"):
        module = family_of(model).build(model, kernels=False)
    names = {part: name for name, part in module.named_modules()}
    found = [names[part] for part in depthwise_in(module)]
    assert len(found) == sum(model.architecture["depths"])
    assert all(name.endswith(".dwconv") for name in found)


def test_no_method_names_a_family() -> None:
    for file in (Path(training.__file__).parent / "methods").glob("*.py"):
        words = set(re.findall(r'"(\w+)"', file.read_text(encoding="utf-8")))
        assert not words & families().keys(), file.name

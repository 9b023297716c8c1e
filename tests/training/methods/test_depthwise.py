"""Depthwise convolutions are found in any image model; test_interpreted.py runs their kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bench.base.errors import BadInput
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import free_lunch, known_methods
from bench.training.models import Model, family_of, known_models
from bench.training.models.depthwise import depthwise_in
from bench.training.vendor import transformers_source
from tests.targets import CPU, H200
from tests.training.models.test_attention import DECODER, IMAGES, OWN, model_of

METHOD = known_methods()["depthwise"]
STAGES = {"num_labels": 10, "depths": [1, 2, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
CONVOLUTIONS: dict[str, tuple[dict[str, Any], int]] = {  # architecture, and how many fit
    "convnext": (STAGES, 5),
    "convnextv2": (STAGES, 5),
    "vit": (IMAGES["dinov2"], 0),
    "dinov2": (IMAGES["dinov2"], 0),
    "resnet": ({"num_labels": 10, "depths": [1, 1], "hidden_sizes": [16, 32], "embedding_size": 8}, 0),
    "mobilenet_v2": ({"num_labels": 10, "depth_multiplier": 0.35}, 0),
    "swin": (OWN["swin"][1], 0),
}


def on_meta(model: Model) -> nn.Module:
    with torch.device("meta"):
        return family_of(model).build(model, kernels=False)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_plan_takes_the_method_where_modules_fit(name: str) -> None:
    architecture, expected = CONVOLUTIONS[name]
    model = model_of(name, "image-classification", architecture)
    assert len(depthwise_in(on_meta(model))) == expected
    reason = METHOD.refuse(model, H200)
    assert (reason is None) == (expected > 0), reason
    assert ("depthwise" in free_lunch(model, H200)) == (expected > 0)
    assert METHOD.refuse(model, CPU)


def test_the_source_says_of_each_family_what_its_formulas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [model for model in known_models().values() if "images" in model.recipe.aim.data]
    by_source = {m.name: transformers_source.why_not_depthwise(m.family) is None for m in images}
    monkeypatch.setattr(transformers_source, "why_not_depthwise", lambda _: "bench cannot read it")
    by_formulas = {m.name: METHOD.refuse(m, H200) is None for m in images}
    assert by_formulas == by_source
    assert by_formulas["convnext-xl"] and not by_formulas["vit-l"]


def test_text_models_and_unknown_code_are_refused() -> None:
    assert "no depthwise" in str(METHOD.refuse(known_models()["pythia-1b"], H200))
    assert METHOD.refuse(model_of("llama", "causal-lm", DECODER), H200)
    assert "cannot read" in str(transformers_source.why_not_depthwise("a-type-of-no-file"))


def test_a_model_without_such_modules_ends_with_the_name_of_the_method() -> None:
    model = model_of("dinov2", "image-classification", IMAGES["dinov2"])
    with pytest.raises(BadInput, match="depthwise"):
        METHOD.apply(model, WithLoss(on_meta(model)), [])


class Weighted(nn.Conv2d):
    """May do anything to its weight before it convolves."""


def test_other_convolutions_do_not_fit() -> None:
    fitting = nn.Conv2d(8, 8, 7, padding=3, groups=8, bias=False)
    others = (
        nn.Conv2d(8, 8, 7, padding=3),
        nn.Conv2d(8, 8, 5, padding=2, groups=8),
        nn.Conv2d(8, 8, 7, padding=3, groups=8, stride=2),
        nn.Conv2d(8, 16, 7, padding=3, groups=8),
        nn.Conv2d(8, 8, 7, padding=3, groups=8, dilation=2),
        nn.Conv2d(8, 8, 7, padding="same", groups=8),
        nn.Conv2d(8, 8, 7, padding=3, groups=8, padding_mode="circular"),
        Weighted(8, 8, 7, padding=3, groups=8),
        nn.Linear(8, 8),
    )
    assert depthwise_in(nn.ModuleList([*others, fitting])) == [fitting]

"""Counts of the zoo ship as data, equal to those that transformers' code gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.training.models import Model, has_formulas
from bench.training.models import shipped_counts as module
from bench.training.models.dry_build import DryBuild, dry_build, rehearse
from bench.training.models.shipped_counts import shipped_counts
from bench.training.models.zoo import zoo_model, zoo_names


def model_of(name: str) -> Model:
    found = zoo_model(name)
    assert found is not None
    return found.model


@pytest.mark.parametrize("name", [name for name in zoo_names() if not has_formulas(model_of(name))])
def test_every_model_of_the_zoo_has_counts(name: str) -> None:
    """`make counts` writes the counts of a model that has none."""
    assert shipped_counts(model_of(name)) is not None


@pytest.mark.parametrize("name", ["gpt2", "qwen3-0.6b", "dit-xl-2", "simmim-vit-b", "wav2vec2-base"])
def test_shipped_counts_are_those_of_the_code(name: str) -> None:
    """`make counts` writes the counts again if they differ. No model has mistakes or leads to a remark."""
    assert dry_build(model_of(name), name) == DryBuild(shipped_counts(model_of(name)))


def test_counts_of_a_sample_hold_for_any_batch_and_for_no_other_length() -> None:
    model = model_of("gpt2")
    recipe = model.recipe
    assert shipped_counts(replace(model, recipe=replace(recipe, batch_size=8, steps=3))) is not None
    assert shipped_counts(replace(model, name="mine")) is not None
    assert shipped_counts(replace(model, recipe=replace(recipe, sequence_length=512))) is None
    assert shipped_counts(replace(model, recipe=replace(recipe, precision="fp16"))) is None


def test_another_version_of_transformers_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed", lambda: "5.18.0")
    assert shipped_counts(model_of("gpt2")) is None


def test_no_torch_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.models.dry_build.find_spec", lambda _: None)
    monkeypatch.setattr(module, "_installed", lambda: None)
    models = [model_of("gpt2"), model_of("whisper-small")]
    assert rehearse(models, "m.json").counted.keys() == {"gpt2", "whisper-small"}

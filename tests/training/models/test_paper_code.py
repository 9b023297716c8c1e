"""The recipes as the paper's published code reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.base.errors import BadInput
from bench.planning.manifest import parse_manifest
from bench.runner.trial.made_up_data import Samples, make_pool
from bench.training.models import families, known_models
from bench.training.models.paper_code import find_model


def manifest(*models: object) -> bytes:
    return json.dumps({"schema": "bench/manifest/v1", "models": models, "methods": "naive"}).encode()


@pytest.mark.parametrize("name", known_models())
def test_every_model_can_be_measured_in_both_readings_at_once(name: str) -> None:
    ours, theirs = parse_manifest(manifest(name, f"{name}@paper-code"), "m.json").models
    assert (ours.name, theirs.name) == (name, f"{name}@paper-code")
    assert theirs.recipe.source != ours.recipe.source
    assert theirs.recipe.save_every_steps is None
    assert list(families()[theirs.family].mistakes(theirs, "/models/1")) == []
    same = ("batch_size", "steps", "precision", "image_size", "clip_norm")
    assert [getattr(theirs.recipe, f) for f in same] == [getattr(ours.recipe, f) for f in same]


def test_a_recipe_can_be_changed_on_top_of_it() -> None:
    (model,) = parse_manifest(
        manifest({"name": "pythia-1b@paper-code", "recipe": {"batch_size": 8}}), "m.json"
    ).models
    assert (model.recipe.batch_size, model.recipe.sequence_length) == (8, 2049)


def test_roberta_asks_for_every_token(tmp_path: Path) -> None:
    model = find_model("tiny-roberta@paper-code")
    assert model is not None
    sample = Samples(model, make_pool(model, tmp_path, 0), 0)[3]
    assert np.all(sample["labels"].numpy() >= 0)


def test_pythia_takes_one_token_more(tmp_path: Path) -> None:
    model = find_model("pythia-160m@paper-code")
    assert model is not None
    assert len(Samples(model, make_pool(model, tmp_path, 0), 0)[0]["input_ids"]) == 2049


def test_another_reading_is_refused_with_the_one_there_is() -> None:
    with pytest.raises(BadInput, match="allowed: pythia-1b@paper-code"):
        parse_manifest(manifest("pythia-1b@other"), "m.json")

"""The samples that the loader makes for a recipe."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.planning.manifest import parse_manifest
from bench.runner.trial import made_up_data
from bench.runner.trial.made_up_data import Samples, Share, batches_of, make_pool
from bench.runner.trial.team import Team
from bench.training.models import Model
from tests.builders import trial
from tests.training.models.test_zoo import of_zoo


def model_of(name: str, **recipe: object) -> Model:
    document = {
        "schema": "bench/manifest/v1", "models": [{"name": name, "recipe": recipe}], "methods": "naive",
    }  # fmt: skip
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    return model


@pytest.mark.parametrize("length", [64, 1 << 22])
def test_a_sample_has_the_length_of_the_recipe(length: int, tmp_path: Path) -> None:
    model = model_of("tiny-mamba", sequence_length=length)
    samples = Samples(model, make_pool(model, tmp_path, 0), 0)
    for sample in (samples[0], samples[1]):
        assert len(sample["input_ids"]) == len(sample["labels"]) == length
        assert sample["input_ids"][1:].equal(sample["labels"][:-1])
    assert not samples[0]["labels"].equal(samples[1]["labels"])


@pytest.mark.parametrize(("length", "asked"), [(1, 1), (3, 1), (10, 2), (64, 10)])
def test_every_sample_of_a_masked_language_model_has_a_label(length: int, asked: int, tmp_path: Path) -> None:
    """15% of three tokens rounds to zero, and the mean loss over no token is NaN."""
    model = model_of("tiny-roberta", sequence_length=length)
    samples = Samples(model, make_pool(model, tmp_path, 0), 0)
    assert [int((samples[i]["labels"] != -100).sum()) for i in range(3)] == [asked] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_loader_starts_at_the_right_sample(rank: int) -> None:
    """Skipped samples are not loaded: after days of training, that would take hours."""
    whole, rest = Share(4, Team(rank, 2)), Share(4, Team(rank, 2), first=3)
    assert list(islice(rest, 5)) == list(islice(whole, 8))[3:]


@pytest.mark.parametrize(("name", "passes_ahead"), [("clip-vit-b-32", 512), ("vit-b-16", 8)])
def test_a_step_that_compares_its_samples_has_all_of_them_loaded_ahead(
    name: str, passes_ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that compares its samples reads all of them before it computes: a loader would fall behind."""
    asked: dict[str, Any] = {}
    pinned: list[tuple[int, ...]] = []

    def loader(_samples: object, **options: Any) -> list[object]:
        asked.update(options)
        return []

    def empty(*shape: int, dtype: torch.dtype, pin_memory: bool) -> None:
        assert pin_memory
        pinned.append(shape)

    monkeypatch.setattr(made_up_data, "DataLoader", loader)
    one = trial(model=of_zoo(name).model, micro_batch=64)
    monkeypatch.setattr(torch, "empty", empty)
    batches_of(one, tmp_path, torch.device("cuda"), Team(), workers=2)
    assert 2 * asked["prefetch_factor"] == passes_ahead
    compares = one.model.recipe.aim.compares_samples
    images = [shape for shape in pinned if len(shape) == 4]
    assert images == [(64, 3, 224, 224)] * (2 * 512 if compares else 0)

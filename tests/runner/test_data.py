"""What the loader makes of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.manifest import parse_manifest
from bench.runner.data import Samples, make_pool


@pytest.mark.parametrize(("length", "asked"), [(1, 1), (3, 1), (10, 2), (64, 10)])
def test_every_sample_of_a_masked_language_model_asks_for_some_token(
    length: int, asked: int, tmp_path: Path
) -> None:
    """15% of three tokens is none, and the mean loss over none is no number."""
    entry = {"name": "tiny-roberta", "recipe": {"sequence_length": length}}
    document = {"schema": "bench/manifest/v1", "models": [entry], "methods": "naive"}
    (model,) = parse_manifest(json.dumps(document).encode(), "m.json").models
    samples = Samples(model, make_pool(model, tmp_path, 0), 0)
    assert [int((samples[i]["labels"] != -100).sum()) for i in range(3)] == [asked] * 3

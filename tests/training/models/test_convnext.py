"""Each block of ConvNeXt has its own drop-path rate, which must not give each its own graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import ConvNextConfig, ConvNextForImageClassification

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import Model, family_of, known_models
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_contract import built

RATE = 0.6  # high, so that a wrong rate is visible


def deep() -> Model:
    tiny = known_models()["tiny-convnext"]
    return replace(tiny, architecture={**tiny.architecture, "depths": [3, 3], "drop_path_rate": RATE})


def losses(whole: torch.nn.Module, batch: dict[str, Any]) -> list[float]:
    torch.manual_seed(1)
    return [float(whole(batch).detach()) for _ in range(3)]


def test_paths_are_dropped_as_transformers_drops_them() -> None:
    model = deep()
    torch.manual_seed(0)
    theirs = ConvNextForImageClassification(ConvNextConfig(**family_of(model).complete(model))).train()
    batch = made_up_batch(model, 8)
    assert losses(WithLoss(built(model)), batch) == pytest.approx(losses(WithLoss(theirs), batch), rel=1e-5)


def test_equal_blocks_share_a_graph_and_keep_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = deep()
    batch = made_up_batch(model, 8)
    expected = losses(WithLoss(built(model)), batch)
    whole = WithLoss(built(model))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    apply_all(("compile-blocks",), model, whole, family_of(model).blocks(whole.model))
    assert losses(whole, batch) == pytest.approx(expected, rel=1e-5)
    # Graphs: the first block without drop path, the other blocks of stage 1, those of stage 2, the loss.
    assert len(graphs) == 4

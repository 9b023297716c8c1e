"""Each block has a rate of its own at which samples leave it out, which must not give each its own graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import Model, family_of
from bench.training.models.stochastic_depth import keep_rates_in_tensors
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import model_of
from tests.training.models.test_contract import built

RATE = 0.6  # high, so that a wrong rate is visible
PICTURES = {"num_labels": 10, "image_size": 64, "drop_path_rate": RATE}
STAGES = {
    "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [4, 4], "num_heads": [2, 4],
}  # fmt: skip
# Fields, and graphs: the first block without stochastic depth, the other kinds of blocks, and the loss.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "beit": (
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2,
         "patch_size": 16},
        1 + 1 + 1,
    ),
    "convnext": (
        {"hidden_sizes": [8, 16], "depths": [3, 3], "num_stages": 2, "layer_scale_init_value": 1.0},
        1 + 2 + 1,
    ),
    "segformer": (
        {"num_encoder_blocks": 2, "depths": [3, 3], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
         "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]},
        1 + 2 + 1,
    ),
    "swin": (STAGES, 1 + 4 + 1),  # every second block shifts its windows
}  # fmt: skip


def deep(model_type: str) -> Model:
    return model_of(model_type, "image-classification", PICTURES | CASES[model_type][0])


def losses(whole: nn.Module, batch: dict[str, Any]) -> list[float]:
    torch.manual_seed(1)
    return [float(whole(batch).detach()) for _ in range(3)]


@pytest.mark.parametrize("model_type", CASES)
def test_equal_blocks_share_a_graph_and_keep_their_rates(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = deep(model_type)
    batch = made_up_batch(model, 8)
    expected = losses(WithLoss(built(model)), batch)
    whole = WithLoss(built(model))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    apply_all(("compile-blocks",), model, whole, family_of(model).blocks(whole.model))
    assert losses(whole, batch) == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == 3, "no sample was left out"
    assert len(graphs) == CASES[model_type][1]


class Depth(nn.Module):
    """Leave out samples as timm does; with `by_element`, single elements instead."""

    def __init__(self, rate: float, *, by_element: bool = False, scaled: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.by_element, self.scaled = rate, by_element, scaled

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features
        shape = features.shape if self.by_element else (len(features), *(1,) * (features.ndim - 1))
        kept = features.new_empty(shape).bernoulli_(1 - self.drop_prob)
        return features * (kept / (1 - self.drop_prob) if self.scaled else kept)


def test_samples_are_left_out_at_the_rate_of_the_module() -> None:
    block = nn.Sequential(nn.Linear(2, 2), Depth(RATE))
    keep_rates_in_tensors(block)
    depth = block[1]
    features = torch.ones(10_000, 3, 2)
    found = depth(features)
    assert {round(float(value), 4) for value in found.unique()} == {0.0, round(1 / (1 - RATE), 4)}
    assert found.mean() == pytest.approx(1, abs=0.05)
    assert torch.equal(depth.eval()(features), features)
    assert dict(depth.named_buffers()) and not depth.state_dict()


@pytest.mark.parametrize(
    "other",
    [Depth(RATE, by_element=True), Depth(RATE, scaled=False), Depth(0.0), Depth(1.0), nn.Dropout(RATE)],
    ids=["dropout of elements", "not scaled", "never", "always", "without drop_prob"],
)
def test_what_does_something_else_is_left_alone(other: nn.Module) -> None:
    block = nn.Sequential(nn.Linear(2, 2), other)
    state = torch.get_rng_state()
    keep_rates_in_tensors(block)
    assert "forward" not in vars(other)
    assert other.training
    assert torch.equal(torch.get_rng_state(), state)

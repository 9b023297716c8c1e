"""A pass over a tiny input, in which parts of a model are looked for, leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import Model
from bench.training.models.own_models import resolve_inline
from bench.training.models.probe import at_rest, on_tiny_input
from bench.training.setting import Setting
from benchmarks.architectures import described
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import built


def big_bird() -> Model:
    """Make a model whose attention is sparse for 32 positions, and full for a tiny input, then for good."""
    given = described("big_bird", "masked-lm")
    given["architecture"] |= {"block_size": 2, "num_random_blocks": 1}
    model = resolve_inline(given, "/models/0")
    assert isinstance(model, Model), model
    return model


@pytest.mark.parametrize("setting", [("half-weights", "joined-products"), ("masked-head",)])
def test_code_that_switches_for_short_samples_computes_the_same_afterwards(setting: Setting) -> None:
    model = big_bird()
    whole, ids = WithLoss(built(model, kernels=False)), made_up_batch(model, 2)["input_ids"]
    parts, expected = list(whole.model.modules()), whole.model(input_ids=ids).logits
    apply_all(setting, model, whole, [])
    torch.testing.assert_close(whole.model(input_ids=ids).logits, expected, rtol=0, atol=0)
    assert list(whole.model.modules()) == parts


def test_a_short_sample_switches_the_code_within_the_pass() -> None:
    model = big_bird()
    module = built(model, kernels=False)
    with on_tiny_input(module, model) as answer:
        answer()
        assert module.bert.attention_type == "original_full"
    assert module.bert.attention_type == "block_sparse"


def test_parts_train_afterwards_as_before() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[1].eval()
    with at_rest(module):
        assert not any(part.training for part in module.modules())
        assert not module(torch.ones(2)).requires_grad
    assert [part.training for part in module.modules()] == [True, True, False]

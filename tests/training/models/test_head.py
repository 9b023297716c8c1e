"""The head called apart from the body computes the model's logits, in any architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all, arithmetic, known_methods
from bench.training.models import Model, counts_of, known_models
from bench.training.models.head import body_and_head_of
from bench.training.models.probe import tiny_input
from bench.training.vendor import transformers_source
from tests.targets import H200
from tests.training.methods.test_masked_head import batch as masked_batch
from tests.training.models.keeping import made_up_batch
from tests.training.models.small_mixers import small
from tests.training.models.test_attention import ENCODER, UNMASKED, WINDOWED, built, model_of, named

MASKED_HEAD = known_methods()["masked-head"]
TEXTS = [
    *(model for model in UNMASKED if model.recipe.unit == "tokens"),
    *(model_of(name, *case) for name, case in WINDOWED.items()),
    *(m for name, m in known_models().items() if name.startswith("tiny-") and m.recipe.unit == "tokens"),
]
READS_BODY = small("falcon_h1", {"lm_head_multiplier": 0.5})  # its head reads this number of the body
MASKED = [model for model in TEXTS if model.recipe.objective == "masked-lm"]


def test_at_least_twenty_architectures_are_tried() -> None:
    assert len({model.family for model in TEXTS}) >= 20


@pytest.mark.parametrize("model", [*TEXTS, READS_BODY], ids=named)
def test_a_loss_by_body_and_head_is_the_loss_of_the_model(model: Model) -> None:
    whole = WithLoss(built(model, kernels=False))
    batch = made_up_batch(model, 2)
    expected = torch.autograd.grad(whole(batch), [*used(whole, batch)])
    whole.split_head(tiny_input(whole.model, model))
    assert whole.head is not None
    found = torch.autograd.grad(whole(batch), [*used(whole, batch)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def used(whole: WithLoss, batch: Any) -> list[nn.Parameter]:
    """Return the parameters on which the loss depends."""
    whole(batch).backward()
    weights = [weight for weight in whole.parameters() if weight.grad is not None]
    whole.zero_grad()
    return weights


@pytest.mark.parametrize("model", MASKED, ids=named)
def test_the_head_of_masked_models_can_be_limited_to_masked_positions(model: Model) -> None:
    assert MASKED_HEAD.refuse(model, H200) is None
    whole = WithLoss(built(model, kernels=False))
    masked = masked_batch(model, 2)
    expected = whole(masked)
    apply_all(("masked-head",), model, whole, [])
    torch.testing.assert_close(whole(masked), expected, rtol=1e-5, atol=1e-7)
    counts = counts_of(model)
    left_out = counts.flops.total - arithmetic(("masked-head",), model, counts).total
    assert 0 < left_out < counts.head < counts.flops.total


def test_a_head_that_mixes_positions_does_not_run_on_its_own() -> None:
    model = built(model_of("llama", "causal-lm", ENCODER), kernels=False)
    head = model.lm_head.forward
    model.lm_head.forward = lambda features: head(features.cumsum(1))
    with pytest.raises(LookupError, match="other logits"):
        body_and_head_of(model, {"input_ids": torch.arange(16).view(2, 8) % 2})


def test_a_head_that_reads_more_than_features_is_refused_before_anything_runs() -> None:
    model = next(model for model in MASKED if model.family == "bert")
    for name in ("longformer", "luke", "bart"):
        assert MASKED_HEAD.refuse(replace(model, family=name), H200)
    assert transformers_source.why_head_needs_more("modernbert") is None

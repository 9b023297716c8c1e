"""A pass without contents leaves nothing, such as an index that transformers keeps, to a later pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.runner.trial.training_loop import WithLoss
from bench.training.models import family_of
from bench.training.models.counted_operations import counted, counted_work
from bench.training.models.probe import tiny_batch
from tests.training.methods.test_joined_products import small


@pytest.mark.parametrize("count", [counted_work, counted])
@pytest.mark.parametrize("model_type", ["beit", "data2vec-vision"])
def test_a_model_trains_after_it_was_counted_in_the_same_process(
    model_type: str, count: Callable[..., Any]
) -> None:
    model = small(model_type, "image-classification", use_relative_position_bias=True)
    count(model, family_of(model))
    module = family_of(model).build(model, kernels=False)
    loss = WithLoss(module, model.recipe.aim)(tiny_batch(module, model))
    assert type(loss) is torch.Tensor
    assert float(loss) > 0

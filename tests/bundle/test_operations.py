"""Operations of a backward pass in a bundle's samples: only what frozen weights can explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.bundle.plausibility import require_operations
from bench.training.models import Flops, Lora, known_models
from tests.builders import trial

PLAIN = known_models()["tiny-gpt-neox"]
ADAPTED = replace(PLAIN, recipe=replace(PLAIN.recipe, lora=Lora(4, 8.0, 0.0, "all-linear")))


def test_frozen_weights_explain_a_cheaper_backward_pass() -> None:
    require_operations(trial(model=ADAPTED), Flops(90, 10, backward=120))
    require_operations(trial(model=PLAIN), Flops(90, 10))


@pytest.mark.parametrize("backward", [-1, 0, 201, None])
def test_operations_that_no_training_of_adapters_has_are_refused(backward: int | None) -> None:
    """More of them would make a slow machine look well used."""
    with pytest.raises(ValueError, match="backward pass"):
        require_operations(trial(model=ADAPTED), Flops(90, 10, backward=backward))


def test_without_frozen_weights_nothing_makes_a_backward_pass_cheaper() -> None:
    with pytest.raises(ValueError, match="counted for another recipe"):
        require_operations(trial(model=PLAIN), Flops(90, 10, backward=120))

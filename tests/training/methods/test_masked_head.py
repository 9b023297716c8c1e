"""The head at masked positions needs fewer operations and less memory; test_equivalence.py checks losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all, arithmetic, known_methods
from bench.training.models import Model, counts_of, families, known_models
from bench.training.models.paper_code import find_model
from tests.targets import H200
from tests.training.models.test_contract import built

TINY = known_models()["tiny-roberta"]
MASKED_HEAD = known_methods()["masked-head"]


def batch(model: Model, samples: int) -> dict[str, Tensor]:
    recipe = model.recipe
    ids = torch.randint(2, model.architecture["vocab_size"], (samples, recipe.units_per_sample))
    labels = torch.full_like(ids, -100)
    for row in labels:
        chosen = torch.randperm(recipe.units_per_sample)[: recipe.asked_per_sample]
        row[chosen] = 7
    return {"input_ids": ids, "labels": labels}


def forward_flops(model: Model, samples: int) -> int:
    whole = WithLoss(built(model))
    apply_all(("masked-head",), model, whole, [])
    made = batch(model, samples)
    with FlopCounterMode(display=False) as counter:
        whole(made)
    counts: dict[Any, int] = counter.get_flop_counts()["Global"]
    return sum(counts.values())


def test_what_is_left_out_is_what_the_counter_misses() -> None:
    naive = counts_of(TINY)
    expected = arithmetic(("masked-head",), TINY, naive)
    assert forward_flops(TINY, 3) == 3 * expected.total
    assert expected.total < naive.flops.total


def test_memory_falls_by_the_logits_that_nobody_asks_for() -> None:
    model = known_models()["roberta-large"]
    family, recipe = families()["roberta"], model.recipe
    plain, less = (
        max(family.activation_bytes(model, setting)) for setting in (("kernels",), ("kernels", "masked-head"))
    )
    silent = recipe.units_per_sample - recipe.asked_per_sample
    # fp32 log-probabilities, two gradients of them, and the tensors that the head's dense layer keeps.
    logits = 3 * 4 * silent * model.architecture["vocab_size"]
    assert plain - less == pytest.approx(logits, rel=0.1)


def test_it_is_refused_where_every_position_is_asked() -> None:
    assert MASKED_HEAD.refuse(known_models()["pythia-1b"], H200)
    assert MASKED_HEAD.refuse(known_models()["vit-l"], H200)
    everywhere = find_model("roberta-large@paper-code")
    assert everywhere is not None
    counts = counts_of(everywhere)
    assert MASKED_HEAD.left_out(everywhere, counts).total == 0

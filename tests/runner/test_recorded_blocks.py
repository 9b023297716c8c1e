"""A recorded pass in which one block of each kind runs has the computations of one in which all run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.runner.trial.counted_products import products_or_reason
from bench.runner.trial.recorded_computations import _recorded
from bench.training.methods import arithmetic
from bench.training.models import counts_of
from tests.builders import trial
from tests.training.models.test_generic import CAUSAL, GROUPED, TEXT, resolved
from tests.training.models.test_repeated_blocks import deep, small

__all__ = ["deep"]  # a fixture
BOTH_WAYS = {
    "llama": "causal-lm", "bert": "masked-lm", "t5": "sequence-to-sequence", "qwen3_moe": "causal-lm",
    "qwen3_next": "causal-lm", "gemma3_text": "causal-lm", "bart": "sequence-to-sequence",
}  # fmt: skip
READING = {
    "switch_transformers": "sequence-to-sequence", "longformer": "masked-lm", "dbrx": "causal-lm",
    "wavlm": "audio-classification",
}  # fmt: skip


@pytest.mark.parametrize("model_type", [*BOTH_WAYS, *READING])
@pytest.mark.usefixtures("deep")
def test_one_block_of_each_kind_computes_as_much_as_all_of_them(model_type: str) -> None:
    model = small(model_type, (BOTH_WAYS | READING)[model_type], precision="bf16")
    once, each = (
        _recorded(model, (), 2, math.inf, each=each, known=model_type in READING) for each in (False, True)
    )
    assert once.counts == each.counts
    assert once.computations.keys() == each.computations.keys()


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("hunyuan_v1_dense", {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}),
        ("phimoe", {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 2.0, **FACTORS}),
    ],
)
def test_products_are_known_if_frequencies_depend_on_positions(name: str, scaling: dict[str, Any]) -> None:
    given = GROUPED | {"pad_token_id": 0, "head_dim": 16, "rope_scaling": scaling}
    model = resolved(name, given, TEXT | CAUSAL | {"precision": "bf16"})
    flops = arithmetic((), model, counts_of(model))
    products = products_or_reason(trial(model=model), flops)
    assert not isinstance(products, str), products
    assert sum(part.forward for part in products) == flops.total


@pytest.mark.parametrize("model_type", READING)
def test_products_of_code_that_reads_what_it_computed_are_known(model_type: str) -> None:
    model = small(model_type, READING[model_type], precision="bf16")
    products = products_or_reason(trial(model=model), arithmetic((), model, counts_of(model)))
    assert not isinstance(products, str), products
    assert {part.precision for part in products} >= {"bf16"}

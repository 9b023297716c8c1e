"""causal-lm is refused for every type of transformers in whose model a token sees those that follow it.

A small model of each type answers two samples that differ in their last token alone.
"""

from __future__ import annotations

import pytest
import torch

from bench.training.models import family_of
from bench.training.models.model import Model
from bench.training.models.probe import at_rest
from bench.training.vendor.transformers_source import SEE_ALL
from benchmarks.architectures import pairs, planned

CAUSAL = "causal-lm"
SHARES = 8  # of all types, each tried by one test
ROUNDING = 1e-5  # of what a token changes at its own place


@pytest.mark.sweep
@pytest.mark.parametrize("share", range(SHARES))
def test_no_token_sees_those_that_follow(share: int, without_footprints: None) -> None:
    types = [model_type for model_type, objective in pairs([]) if objective == CAUSAL][share::SHARES]
    plans = {model_type: planned(model_type, CAUSAL) for model_type in types}
    leaks = {model_type: leak(*models) for model_type, (models, mistakes) in plans.items() if not mistakes}
    assert len(leaks) > len(types) / 2
    assert {model_type: found for model_type, found in leaks.items() if not found <= ROUNDING} == {}


@pytest.mark.parametrize("model_type", sorted(SEE_ALL))
def test_types_whose_tokens_see_all_are_refused(model_type: str) -> None:
    (model,), (mistake,) = planned(model_type, CAUSAL)
    assert leak(model) > ROUNDING
    assert mistake.found == f'"{CAUSAL}": in transformers, a token of {model_type} sees those that follow'


def leak(model: Model) -> float:
    """Return how much the last token changes other answers, as a share of what it changes at its place."""
    torch.manual_seed(0)
    module = family_of(model).build(model, kernels=False).float()
    tokens = torch.randint(4, 900, (1, model.recipe.sequence_length)).repeat(2, 1)
    tokens[1, -1] = (tokens[0, -1] + 1) % 900
    with at_rest(module):
        one, other = model.recipe.aim.answer(module, {"input_ids": tokens})
    changes = (one - other).abs().amax(-1)
    return float(changes[:-1].max() / changes[-1])

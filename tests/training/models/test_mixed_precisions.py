"""Code that mixes precisions trains with half-precision weights, because the model then autocasts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.runner.trial.training_loop import WithLoss, lowered
from bench.training.models import family_of
from bench.training.models.counted_memory import counted_memory
from bench.training.models.generic import TransformersFamily
from bench.training.models.mixed_precisions import MIXING
from bench.training.models.probe import tiny_batch
from bench.training.setting import Setting
from tests.training.methods.test_joined_products import small, trained
from tests.training.test_equivalence import curve
from website.sources import ROOT

AIMS = {
    "fnet": "masked-lm", "minimax": "causal-lm", "mra": "masked-lm", "openai-gpt": "causal-lm",
    "swinv2": "image-classification", "xlstm": "causal-lm",
}  # fmt: skip
DROPOUT = {
    "fnet": {"hidden_dropout_prob": 0.0},
    "mra": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "openai-gpt": {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
    "swinv2": {"drop_path_rate": 0.0},
}
HALF_WEIGHTS: Setting = ("half-weights",)
OBJECTIVES = re.findall(r"^## (.+)$", (ROOT / "docs" / "models.md").read_text(), re.MULTILINE)


def failing(model_type: str, objective: str) -> list[str]:
    """Return why the code of a small model fails with weights in half precision."""
    model = small(model_type, objective)
    family = family_of(model)
    if not isinstance(family, TransformersFamily):
        return []
    build = partial(family.build_for_memory, model)
    found = counted_memory(model, build, family.blocks, [(False, (False,))])
    return [one.reason for one in found.failing if one.halved]


def test_every_type_that_mixes_precisions_is_tested_here() -> None:
    assert set(AIMS) == MIXING


@pytest.mark.parametrize("model_type", AIMS)
def test_code_that_mixes_precisions_is_not_refused_for_half_weights(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failing(model_type, AIMS[model_type]) == []
    monkeypatch.setattr("bench.training.models.mixed_precisions.MIXING", frozenset())
    assert failing(model_type, AIMS[model_type])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model_type", "objective"), dict(pair for objective in OBJECTIVES for pair in trained(objective)).items()
)
def test_no_architecture_that_trains_is_refused_for_half_weights(model_type: str, objective: str) -> None:
    assert failing(model_type, objective) == []


@pytest.mark.parametrize("model_type", AIMS)
def test_losses_and_gradients_are_those_of_fp32_weights(model_type: str, tmp_path: Path) -> None:
    model = small(model_type, AIMS[model_type], **DROPOUT.get(model_type, {}))
    settings: tuple[Setting, ...] = ((), HALF_WEIGHTS)
    expected, found = (curve(model, setting, tmp_path, micro_batch=2, batch=4) for setting in settings)
    steps = 1 if model_type == "swinv2" else 3  # a small SwinV2 diverges, and small differences grow
    torch.testing.assert_close(found[:steps], expected[:steps], rtol=2e-3, atol=0)  # losses
    torch.testing.assert_close(found[3 : 3 + steps], expected[3 : 3 + steps], rtol=2e-2, atol=0)  # norms


@pytest.mark.parametrize("model_type", AIMS)
def test_the_model_autocasts_inside_of_an_engine_that_turns_autocast_off(model_type: str) -> None:
    model = small(model_type, AIMS[model_type])
    module = family_of(model).build(model, kernels=False)
    whole = WithLoss(module, model.recipe.aim)
    batch = lowered(tiny_batch(module, model), model.recipe)
    for weight in module.parameters():
        weight.data = weight.data.bfloat16()
    with torch.autocast("cpu", enabled=False):  # as DeepSpeed's engine calls a model
        whole(batch).backward()
    assert {weight.grad.dtype for weight in module.parameters() if weight.grad is not None} == {
        torch.bfloat16
    }

"""Code that mixes precisions trains with half-precision weights, because the model then autocasts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import family_of
from bench.training.models.counted_memory import counted_memory
from bench.training.models.generic import TransformersFamily
from bench.training.models.mixed_precisions import MIXING
from bench.training.models.probe import tiny_batch
from bench.training.setting import Setting
from tests.training.methods.test_joined_products import small
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


def failing(model_type: str, objective: str) -> list[str]:
    """Return why the code of a small model fails with weights in half precision, with kernels or without."""
    model = small(model_type, objective)
    family = family_of(model)
    if not isinstance(family, TransformersFamily):
        return []
    build = partial(family.build_for_memory, model)
    ways = [(kernels, (False,)) for kernels, _ in family.counted_ways()]
    return [one.reason for one in counted_memory(model, build, family.blocks, ways).failing if one.halved]


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
def test_no_architecture_that_trains_is_refused_for_half_weights() -> None:
    refused = {}
    for section in (ROOT / "docs" / "models.md").read_text().split("\n## ")[1:]:
        objective, _, rest = section.partition("\n")
        listed = rest.partition("Train: ")[2].partition(".\n")[0]
        for name in filter(None, listed.replace("`", "").split(", ")):
            if reasons := failing(name, objective):
                refused[name, objective] = reasons
    assert refused == {}


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
    batch = lowered_images(tiny_batch(module, model))
    for weight in module.parameters():
        weight.data = weight.data.bfloat16()
    with torch.autocast("cpu", enabled=False):  # as DeepSpeed's engine calls a model
        whole(batch).backward()
    assert {weight.grad.dtype for weight in module.parameters() if weight.grad is not None} == {
        torch.bfloat16
    }


def lowered_images(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: part.bfloat16() if part.is_floating_point() else part for name, part in batch.items()}


@pytest.mark.parametrize(
    ("setting", "precision"),
    [(HALF_WEIGHTS, torch.bfloat16), (("zero-1",), torch.bfloat16), ((), torch.float32)],
)
def test_tables_of_positions_have_the_precision_of_weights_that_a_setting_lowers(
    setting: Setting, precision: torch.dtype
) -> None:
    """DeepSpeed leaves buffers as they are, so that ZeRO of M2M-100 crashed."""
    model = small("m2m_100", "sequence-to-sequence")
    module: nn.Module = family_of(model).build(model, kernels=False)
    apply_all(setting, model, WithLoss(module, model.recipe.aim), [])
    tables = [
        table for name, table in module.named_buffers() if "embed_positions" in name and table.dim() == 2
    ]
    assert tables
    assert {table.dtype for table in tables} == {precision}

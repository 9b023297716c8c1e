"""Checkpoints of exported scripts contain everything needed to resume; tested here on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.export.templates.script import load, save
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss
from bench.training.models import Precision, known_models
from bench.training.optimizers import OPTIMIZERS
from bench.training.setting import Setting
from tests.builders import trial

TINY = known_models()["tiny-gpt-neox"]


def begun(
    setting: Setting, precision: Precision, seed: int, folder: Path, optimizer: str = "adam"
) -> TrialRun:
    """Start training; another seed gives other weights and other data."""
    updated_by = OPTIMIZERS[optimizer](optimizer, 1e-3, 0.9, 0.95, 1e-8, 0.1)
    recipe = replace(TINY.recipe, precision=precision, batch_size=8, sequence_length=16, optimizer=updated_by)
    model = replace(TINY, recipe=recipe)
    one = trial(model=model, setting=setting, micro_batch=4, seed=seed)
    run = TrialRun(one, Device("cpu"), Team(), folder, lambda event: None)
    run.prepare()
    return run


def train(run: TrialRun, steps: int) -> list[float]:
    return [float(run.step(run.trial.accumulation)) for _ in range(steps)]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("optimizer", ["adam", "adamw-8bit", "muon"])
@pytest.mark.parametrize(
    ("setting", "precision"),
    [
        ((), "fp32"),
        ((), "fp16"),
        (("half-weights",), "bf16"),
        (("half-weights",), "fp16"),
        (("half-weights",), "fp8"),
    ],
)
def test_training_goes_on_as_if_it_had_not_stopped(
    setting: Setting, precision: Precision, optimizer: str, tmp_path: Path
) -> None:
    whole = begun(setting, precision, 3, tmp_path, optimizer)
    train(whole, 2)
    save(whole.strategy, tmp_path / "checkpoints", 2, Team())
    resumed = begun(setting, precision, 4, tmp_path, optimizer)
    assert load(resumed.strategy, tmp_path / "checkpoints") == 2
    resumed.batches = whole.load()
    for _ in range(2 * whole.trial.accumulation):
        next(resumed.batches)
    assert train(resumed, 4) == train(whole, 4)
    mine, theirs = (one.strategy.optimizer for one in (resumed, whole))
    for one, other in zip(mine.param_groups, theirs.param_groups, strict=True):
        for weight, same in zip(one["params"], other["params"], strict=True):
            assert torch.equal(weight, same)
            for name, value in theirs.state[same].items():
                assert mine.state[weight][name].dtype == value.dtype
                assert torch.equal(mine.state[weight][name], value), name


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("optimizer", ["adam", "adamw-8bit", "muon"])
@pytest.mark.parametrize(("setting", "precision"), [((), "fp32"), ((), "fp16"), (("half-weights",), "bf16")])
def test_a_checkpoint_with_an_unused_weight_can_be_resumed(
    setting: Setting, precision: Precision, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some models of transformers have unused weights, which cause no other error without DDP."""
    plain = WithLoss.__init__

    def with_one_more(whole: WithLoss, *given: Any) -> None:
        plain(whole, *given)
        whole.unused = torch.nn.Parameter(torch.ones(64, 65))  # large enough for 8-bit moments

    monkeypatch.setattr(WithLoss, "__init__", with_one_more)
    whole = begun(setting, precision, 3, tmp_path, optimizer)
    train(whole, 2)
    save(whole.strategy, tmp_path / "checkpoints", 2, Team())
    resumed = begun(setting, precision, 4, tmp_path, optimizer)
    assert load(resumed.strategy, tmp_path / "checkpoints") == 2
    resumed.batches, whole.batches = whole.load(), whole.load()
    assert train(resumed, 3) == train(whole, 3)

"""The effect of one optimizer step of the loop on the weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Batches, samples_of
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.models import Model, known_models
from bench.training.optimizers import OPTIMIZERS, Adam
from tests.builders import trial

CPU = Device("cpu")


def plain_roberta(name: Literal["adam", "adamw"]) -> Model:
    """Build a RoBERTa without dropout and with a large weight decay; each sample has some labels."""
    model = known_models()["tiny-roberta"]
    silent = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    optimizer = Adam(name, 1e-3, 0.9, 0.98, 1e-6, weight_decay=0.5)
    recipe = replace(model.recipe, batch_size=16, optimizer=optimizer, clip_norm=0.5)
    return replace(model, architecture={**model.architecture, **silent}, recipe=recipe)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_step_computes_the_same_at_every_micro_batch(
    name: Literal["adam", "adamw"], tmp_path: Path
) -> None:
    """Four passes of four samples give the same weights as the whole batch at once with textbook AdamW.

    fairseq, apex, DeepSpeed and flax use the same algorithm under the name Adam.
    """
    model = plain_roberta(name)
    run = TrialRun(trial(model=model, micro_batch=4), CPU, Team(), tmp_path, lambda event: None)
    run.prepare()
    by_hand: Any = TrialRun(run.trial, CPU, Team(), tmp_path, lambda event: None).build()
    module = by_hand.whole.model.double()
    whole_batches = Batches(samples_of(run.trial, tmp_path), 16, CPU.torch, Team(), workers=0)
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in module.parameters()]
    for step in (1, 2, 3):
        run.step(4)
        textbook_step(module, next(whole_batches), model, moments, step)
    strategy: Any = run.strategy
    for weight, expected in zip(strategy.weights, module.parameters(), strict=True):
        torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-6)


def textbook_step(
    module: Any, batch: dict[str, Tensor], model: Model, moments: list[tuple[Tensor, Tensor]], step: int
) -> None:
    recipe, o = model.recipe, model.recipe.optimizer
    module.zero_grad()
    likely = module(batch["input_ids"]).logits.log_softmax(-1)
    asked = batch["labels"] != -100
    (-likely[asked].gather(1, batch["labels"][asked].unsqueeze(1)).mean()).backward()
    norm = math.sqrt(sum(float(weight.grad.square().sum()) for weight in module.parameters()))
    assert recipe.clip_norm is not None
    assert norm > recipe.clip_norm
    rate = o.learning_rate * recipe.schedule.factor(step - 1, recipe.steps)
    with torch.no_grad():
        for weight, (first, second) in zip(module.parameters(), moments, strict=True):
            gradient = weight.grad * recipe.clip_norm / norm
            first.mul_(o.beta1).add_(gradient, alpha=1 - o.beta1)
            second.mul_(o.beta2).add_(gradient.square(), alpha=1 - o.beta2)
            mean, variance = first / (1 - o.beta1**step), second / (1 - o.beta2**step)
            weight.sub_(rate * (mean / (variance.sqrt() + o.epsilon) + o.weight_decay * weight))


@pytest.mark.parametrize("name", ["muon", "adamw-8bit"])
def test_half_precision_weights_are_updated_like_those_of_autocast(name: str, tmp_path: Path) -> None:
    """The fp32 copies of half-weights move like fp32 weights, apart from gradients rounded to bf16.

    A pass has two samples: a CPU without units for bf16 takes most of a second for eight.
    """
    tiny = known_models()["tiny-gpt-neox"]
    optimizer = OPTIMIZERS[name](name, 1e-3, 0.9, 0.95, 1e-8, 0.1)
    model = replace(tiny, recipe=replace(tiny.recipe, precision="bf16", batch_size=4, optimizer=optimizer))
    moved = []
    for setting in ((), ("half-weights",)):
        one = trial(model=model, setting=setting, micro_batch=2, seed=5)
        run = TrialRun(one, CPU, Team(), tmp_path, lambda event: None)
        run.prepare()
        strategy: Any = run.strategy
        before = [weight.detach().clone() for weight in strategy.weights]
        for _ in range(8):
            run.step(2)
        moved.append([new.detach() - old for new, old in zip(strategy.weights, before, strict=True)])
    plain, half = (torch.cat([change.flatten() for change in changes]) for changes in moved)
    # Weights rounded to bf16 after each step are 0.17 apart and more.
    assert float((plain - half).norm() / plain.norm()) < 0.1
    assert float(plain.norm()) == pytest.approx(float(half.norm()), rel=0.02)

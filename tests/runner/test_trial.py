"""A single trial, run in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.records.trial import Crashed, StepSample, Timing, Trial
from bench.runner.processes.worker import classify
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import SingleDevice
from bench.training.models import known_models
from tests.builders import trial
from tests.training.models.test_zoo import of_zoo, shrunk


def test_a_timed_pass_scales_its_loss_as_in_the_recipes_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is divided by the passes of the recipe's step, although fewer passes are timed."""
    model = known_models()["tiny-gpt-neox"]
    many = 1_000_000  # a duration that no machine reaches
    model = replace(model, recipe=replace(model.recipe, batch_size=many))
    timing = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1, loss_steps=1)
    trial = Trial(model, (), 1, 1, 0, timing)
    phase = [""]
    divisors: dict[str, set[int]] = {}
    plain = SingleDevice.forward_backward

    def spy(loop: SingleDevice, batch: dict[str, torch.Tensor], passes: int, sync: bool) -> torch.Tensor:
        divisors.setdefault(phase[-1], set()).add(passes)
        return plain(loop, batch, passes, sync)

    monkeypatch.setattr(SingleDevice, "forward_backward", spy)
    run = TrialRun(
        trial, Device("cpu"), Team(), tmp_path, lambda event: phase.append(event.get("phase", phase[-1]))
    )
    measured = run.run()
    assert max(sample.accumulation for sample in measured.steps) < many
    assert divisors["warm-up"] == divisors["measure"] == {many}


def test_a_pass_is_counted_once_if_compiled_code_returns_one_gradient_for_two_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return (first + second).sum()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            shared = gradient.expand(size).contiguous()
            return shared.view(-1), shared.view(-1)

    run = TrialRun(
        trial(model=known_models()["tiny-gpt-neox"]), Device("cpu"), Team(), tmp_path, lambda _: None
    )
    loop = run.build()
    weights = dict(loop.whole.named_parameters())
    both = [
        weights[f"model.gpt_neox.layers.0.{name}.bias"] for name in ("attention.dense", "mlp.dense_4h_to_h")
    ]
    size = both[0].numel()
    monkeypatch.setattr(SingleDevice, "forward", lambda _loop, _batch: Shared.apply(*both))
    for _ in range(4):
        loop.forward_backward({}, 4, sync=True)
    assert [set(weight.grad.tolist()) for weight in both if weight.grad is not None] == [{1.0}, {1.0}]


def test_a_model_that_ignores_the_device_it_is_built_on_is_moved_there(tmp_path: Path) -> None:
    """Wav2Vec2 makes a parameter with torch.Tensor(...), which is always in the host's memory."""
    model = shrunk(of_zoo("wav2vec2-base").model)
    run = TrialRun(trial(model=model), Device("cpu"), Team(), tmp_path, lambda _: None)
    run.device = SimpleNamespace(torch=torch.device("meta"))  # type: ignore[assignment]
    assert {weight.device.type for weight in run.build_model().parameters()} == {"meta"}


@pytest.mark.parametrize("every", [10, 10_000], ids=["often", "rarely"])
def test_saving_logging_and_evaluating_are_timed_once_if_the_recipe_has_them(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = known_models()["tiny-vit"]
    recipe = replace(
        model.recipe, log_every_steps=10, save_every_steps=100, eval_every_steps=every, eval_samples=20
    )
    timing = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1, loss_steps=1)
    trial = Trial(replace(model, recipe=recipe), (), 16, 1, 0, timing)
    modes: list[bool] = []
    evaluate = SingleDevice.evaluate

    def spy(loop: SingleDevice, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        modes.append(loop.whole.training)
        return evaluate(loop, batch)

    monkeypatch.setattr(SingleDevice, "evaluate", spy)
    run = TrialRun(trial, Device("cpu"), Team(), tmp_path, lambda event: None)
    measured = run.run()
    assert measured.log_seconds
    assert measured.save_seconds
    assert measured.eval_seconds_per_sample
    assert run.strategy.whole.training
    if every == 10:
        assert modes == [False, False]
    else:  # so few samples that a training pass is a sufficient bound
        assert modes == []


def test_a_rare_evaluation_is_bounded_by_a_pass_without_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound excludes the update, because an update on the host takes longer than many passes."""
    model = known_models()["tiny-vit"]
    recipe = replace(model.recipe, eval_every_steps=10_000, eval_samples=20)
    trial = Trial(replace(model, recipe=recipe), (), 16, 1, 0, Timing(loss_steps=1))
    pass_seconds, update_seconds = 1.0, 40.0
    monkeypatch.setattr(
        TrialRun,
        "timed_step",
        lambda _run, passes: StepSample(passes, passes * pass_seconds + update_seconds),
    )
    measured = TrialRun(trial, Device("cpu"), Team(), tmp_path, lambda event: None).run()
    assert measured.eval_seconds_per_sample == pytest.approx(pass_seconds / 16)


def test_a_loss_that_is_not_finite_ends_a_trial_before_timing(tmp_path: Path) -> None:
    model = known_models()["tiny-vit"]
    optimizer = replace(model.recipe.optimizer, learning_rate=1e30)
    timing = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1)
    trial = Trial(replace(model, recipe=replace(model.recipe, optimizer=optimizer)), (), 16, 1, 0, timing)
    events: list[dict[str, object]] = []
    with pytest.raises(FloatingPointError) as raised:
        TrialRun(trial, Device("cpu"), Team(), tmp_path, events.append).run()
    assert [event["phase"] for event in events if "phase" in event] == ["build", "first steps"]
    outcome = classify(raised.value)
    assert isinstance(outcome, Crashed)
    assert "the loss is nan at step 2: lower the recipe's learning rate" in outcome.reason

"""One trial, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.models import known_models
from bench.result import Timing, Trial
from bench.runner.device import Device
from bench.runner.loop import Loop
from bench.runner.team import Team
from bench.runner.trial import TrialRun


def test_a_timed_pass_computes_with_the_numbers_of_the_recipe_s_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is divided by all passes of a step, though only a few of them are timed."""
    model = known_models()["tiny-gpt-neox"]
    timing = Timing(target_percent=50, measure_seconds=0.1, warmup_seconds=0.1, loss_steps=1)
    trial = Trial(model, (), model.recipe.batch_size // 16, 1, 0, timing)
    phase = [""]
    divisors: dict[str, set[int]] = {}
    plain = Loop.forward_backward

    def spy(loop: Loop, batch: dict[str, torch.Tensor], passes: int, sync: bool) -> torch.Tensor:
        divisors.setdefault(phase[-1], set()).add(passes)
        return plain(loop, batch, passes, sync)

    monkeypatch.setattr(Loop, "forward_backward", spy)
    run = TrialRun(
        trial, Device("cpu"), Team(), tmp_path, lambda event: phase.append(event.get("phase", phase[-1]))
    )
    measured = run.run()
    assert max(sample.accumulation for sample in measured.steps) < 16
    assert divisors["warm-up"] == divisors["measure"] == {16}

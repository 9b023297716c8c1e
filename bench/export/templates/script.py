"""Trains the model of trial.json with the setting that was measured. README.md says how to start it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from bench.export import runtime

HERE = Path(__file__).parent
SAVE_EVERY = 1000  # steps between two checkpoints
WARM_STEPS = 3


def batches(run: runtime.TrialRun, first: int) -> Iterator[dict[str, Any]]:
    """Return this device's made-up micro-batches, endless from number `first` on: replace them by yours."""
    return run.load(first)


def main() -> None:
    trial = runtime.read_trial(HERE)
    options = runtime.parse_options(__doc__, trial, save_every=SAVE_EVERY)
    device = runtime.Device.own("cuda" if torch.cuda.is_available() else "cpu")
    runtime.check_devices(trial, int(os.environ.get("WORLD_SIZE", "1")))
    alone = trial.gpus == 1 and runtime.in_group(trial.setting, "sharding") is None
    if not alone and "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: README.md has the command")
    device.choose()
    team = runtime.join(device.kind, alone)
    with tempfile.TemporaryDirectory() as scratch:
        run = runtime.TrialRun(trial, device, team, Path(scratch), lambda _event: None)
        train(run, run.build(), options, team)


def train(
    run: runtime.TrialRun, strategy: runtime.Strategy, options: runtime.TrainingOptions, team: runtime.Team
) -> None:
    # Here `strategy.whole.model` is the model, with random weights: load yours to go on from them.
    passes = run.trial.accumulation
    done = load(strategy, options.out) if options.resume and options.out else 0
    data = batches(run, done * passes)
    total = torch.zeros((), device=run.device.torch)
    log = runtime.StepLog(done, prints=team.rank == 0)
    for step in range(done + 1, options.last_step + 1):
        for i, batch in enumerate(run.micro_batches(strategy, data, passes)):
            total += strategy.forward_backward(batch, passes, sync=i == passes - 1)
        strategy.update()
        if step == done + WARM_STEPS:
            runtime.freeze_garbage_collector()
        if options.logs(step):
            log.write(step, team.mean(float(total) / (step - log.step)))  # float() waits for the device
            total.zero_()
        if options.out and options.saves(step):
            save(strategy, options.out, step, team)
            adapter = options.out / f"step-{step}" / "adapter"
            runtime.save_adapters(run.trial, strategy.whole.model, adapter, writes=team.rank == 0)


def save(strategy: Any, folder: Path, step: int, team: runtime.Team) -> None:
    """Save weights, moments and schedule; each member of the team writes its part."""
    if hasattr(strategy, "engine"):
        strategy.engine.save_checkpoint(str(folder), tag=f"step-{step}")
    else:
        dcp.save(strategy.state(), checkpoint_id=folder / f"step-{step}")
    if team.rank == 0:
        rest = {"scheduler": strategy.scheduler.state_dict()}
        if hasattr(strategy, "scaler"):
            rest["scaler"] = strategy.scaler.state_dict()
        torch.save(rest, folder / f"step-{step}" / "rest.pt")
        runtime.mark_complete(folder, step)


def load(strategy: Any, folder: Path) -> int:
    """Load the last complete checkpoint; return the number of its step."""
    step = runtime.latest_step(folder)
    if hasattr(strategy, "engine"):
        strategy.engine.load_checkpoint(str(folder), tag=f"step-{step}")
    else:
        state = strategy.state()
        dcp.load(state, checkpoint_id=folder / f"step-{step}")
        strategy.go_on_from(state)
    rest = torch.load(folder / f"step-{step}" / "rest.pt", weights_only=True)
    strategy.scheduler.load_state_dict(rest["scheduler"])
    if "scaler" in rest:
        strategy.scaler.load_state_dict(rest["scaler"])
    return step


if __name__ == "__main__":
    main()

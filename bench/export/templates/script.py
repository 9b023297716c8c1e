"""Trains the model of trial.json with the setting that was measured. README.md says how to start it."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from bench.base.strict_json import from_json, strict_loads
from bench.cli.arguments import count
from bench.export.guards import finite, nothing_lost, right_devices
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun, freeze_garbage_collector
from bench.runner.trial.team import Team, join
from bench.runner.trial.training_loop import Strategy
from bench.training.setting import in_group

HERE = Path(__file__).parent
SILENT = 10  # steps between two lines of the log, where the recipe names none
SAVE_EVERY = 1000  # steps between two checkpoints
WARM_STEPS = 3


def batches(run: TrialRun, first: int) -> Iterator[dict[str, Any]]:
    """This device's micro-batches, from its `first` on, without end. These are made up: yours go here."""
    return run.load(first)


def main() -> None:
    arguments = parse()
    trial = from_json(Trial, strict_loads((HERE / "trial.json").read_bytes()))
    device = Device.own("cuda" if torch.cuda.is_available() else "cpu")
    right_devices(trial, int(os.environ.get("WORLD_SIZE", "1")))
    alone = trial.gpus == 1 and in_group(trial.setting, "sharding") is None
    if not alone and "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: README.md has the command")
    device.choose()
    team = join(device.kind, alone)
    with tempfile.TemporaryDirectory() as scratch:
        run = TrialRun(trial, device, team, Path(scratch), lambda _event: None)
        train(run, run.build(), arguments, team)


def train(run: TrialRun, strategy: Strategy, arguments: argparse.Namespace, team: Team) -> None:
    recipe, passes = run.trial.model.recipe, run.trial.accumulation
    done = load(strategy, arguments.out) if arguments.resume else 0
    data = batches(run, done * passes)
    total = torch.zeros((), device=run.device.torch)
    since, at = done, time.perf_counter()
    last = arguments.steps or recipe.steps
    for step in range(done + 1, last + 1):
        for i in range(passes):
            total += strategy.forward_backward(next(data), passes, sync=i == passes - 1)
        strategy.update()
        if step == done + WARM_STEPS:
            freeze_garbage_collector()
        saves = arguments.out and (step == last or step % (arguments.save_every or SAVE_EVERY) == 0)
        if saves or step == last or step % (arguments.log_every or recipe.log_every_steps or SILENT) == 0:
            loss = finite(team.mean(float(total) / (step - since)), step)  # float: waits for the device
            seconds = (time.perf_counter() - at) / (step - since)
            if team.rank == 0:
                print(json.dumps({"step": step, "loss": loss, "step_seconds": seconds}), flush=True)
            total.zero_()
            since, at = step, time.perf_counter()
        if saves:
            save(strategy, arguments.out, step, team)


def save(strategy: Any, folder: Path, step: int, team: Team) -> None:
    """Weights, moments, schedule; every member its part. `latest` names the last one that is whole."""
    if hasattr(strategy, "engine"):
        strategy.engine.save_checkpoint(str(folder), tag=f"step-{step}")
    else:
        dcp.save(strategy.state(), checkpoint_id=folder / f"step-{step}")
    if team.rank == 0:
        rest = {"scheduler": strategy.scheduler.state_dict()}
        if hasattr(strategy, "scaler"):
            rest["scaler"] = strategy.scaler.state_dict()
        torch.save(rest, folder / f"step-{step}" / "rest.pt")
        (folder / "latest-step").write_text(str(step))


def load(strategy: Any, folder: Path) -> int:
    """The steps that were done when it was saved."""
    if not (latest := folder / "latest-step").exists():
        raise SystemExit(f"{folder} holds no checkpoint to go on from")
    step = int(latest.read_text())
    if hasattr(strategy, "engine"):
        strategy.engine.load_checkpoint(str(folder), tag=f"step-{step}")
    else:
        found = strategy.state()
        dcp.load(found, checkpoint_id=folder / f"step-{step}")
        strategy.go_on_from(found)
    rest = torch.load(folder / f"step-{step}" / "rest.pt", weights_only=True)
    strategy.scheduler.load_state_dict(rest["scheduler"])
    if "scaler" in rest:
        strategy.scaler.load_state_dict(rest["scaler"])
    return step


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, help="default: the recipe's")
    parser.add_argument(
        "--out", type=Path, help="where checkpoints go, the last step's too; else none is saved"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--log-every", type=count, metavar="STEPS", help="default: the recipe's, or 10")
    parser.add_argument("--save-every", type=count, metavar="STEPS", help=f"default: {SAVE_EVERY}")
    arguments = parser.parse_args()
    if arguments.resume and arguments.out is None:
        parser.error("--resume needs --out, where the checkpoints are")
    nothing_lost(arguments.out, arguments.resume)
    return arguments


if __name__ == "__main__":
    main()

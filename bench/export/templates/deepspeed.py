"""Trains the model of trial.json with DeepSpeed. README.md says how to start it."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed
import torch.distributed as dist

from bench.base.strict_json import from_json, strict_loads
from bench.cli.arguments import count
from bench.export.guards import finite, nothing_lost, right_devices
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Batches, make_pool
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss, make_scheduler
from bench.runner.trial.zero_strategy import drop_stale_locks, optimizer_of
from bench.training.methods import apply_all, prepare_all
from bench.training.models import family_of
from bench.training.setting import in_group

HERE = Path(__file__).parent
SAVE_EVERY = 1000  # steps between two checkpoints


def main() -> None:
    arguments = parse()
    trial = from_json(Trial, strict_loads((HERE / "trial.json").read_bytes()))
    recipe = trial.model.recipe
    drop_stale_locks()
    deepspeed.init_distributed()
    team = Team(dist.get_rank(), dist.get_world_size())
    right_devices(trial, team.size)
    torch.manual_seed(trial.seed)
    prepare_all(trial.setting)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    family = family_of(trial.model)
    with device:
        built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = WithLoss(built)
    apply_all(trial.setting, trial.model, whole, family.blocks(built))
    fused, offload = "fused-optimizer" in trial.setting, "offload" in trial.setting
    shards = in_group(trial.setting, "sharding") is not None
    optimizer = optimizer_of(whole, recipe, offload=offload, fused=fused)
    schedule = make_scheduler(optimizer, recipe)
    engine, *_ = deepspeed.initialize(
        model=whole, optimizer=optimizer, config=str(HERE / "deepspeed.json"), lr_scheduler=schedule
    )
    done = load(engine, arguments.out) if arguments.resume else 0
    with tempfile.TemporaryDirectory() as scratch:
        # This device's micro-batches, from its `first` on, without end. These are made up: yours go here.
        first = done * trial.accumulation
        workers = Device.own("cuda" if torch.cuda.is_available() else "cpu").loaders()
        pool = make_pool(trial.model, Path(scratch) / str(team.rank), trial.seed)
        made_up = Batches(trial.model, pool, trial.micro_batch, trial.seed, device, team, workers, first)
        every = arguments.log_every or recipe.log_every_steps or 10
        total, since, at = torch.zeros((), device=device), done, time.perf_counter()
        last = arguments.steps or recipe.steps
        for step in range(done + 1, last + 1):
            for _ in range(trial.accumulation):
                batch = next(made_up)
                loss = engine(lowered(batch, recipe.precision) if shards else batch)
                engine.backward(loss)
                engine.step()  # of every accumulated pass: the engine knows which is the last
                total += loss.detach() / trial.accumulation
            saves = arguments.out and (step == last or step % (arguments.save_every or SAVE_EVERY) == 0)
            if saves or step == last or step % every == 0:
                dist.all_reduce(total)
                mean = finite(float(total) / (step - since) / team.size, step)
                seconds = (time.perf_counter() - at) / (step - since)
                if team.rank == 0:
                    print(json.dumps({"step": step, "loss": mean, "step_seconds": seconds}), flush=True)
                total, since, at = torch.zeros_like(total), step, time.perf_counter()
            if saves:
                engine.save_checkpoint(str(arguments.out), tag=f"step-{step}", client_state={"step": step})
    dist.destroy_process_group()


def load(engine: Any, folder: Path) -> int:
    """The steps that were done when the checkpoint was saved that `latest` names."""
    path, rest = engine.load_checkpoint(str(folder))
    if path is None:
        raise SystemExit(f"{folder} holds no checkpoint to go on from")
    return int(rest["step"])


def lowered(batch: dict[str, torch.Tensor], precision: str) -> dict[str, torch.Tensor]:
    """ZeRO has no autocast: pictures come in the weights' precision."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, help="default: the recipe's")
    parser.add_argument(
        "--out", type=Path, help="where checkpoints go, the last step's too; else none is saved"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--log-every", type=count, metavar="STEPS", help="default: the recipe's, or 10")
    parser.add_argument("--save-every", type=count, metavar="STEPS", help=f"default: {SAVE_EVERY}")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher")
    arguments = parser.parse_args()
    if arguments.resume and arguments.out is None:
        parser.error("--resume needs --out, where the checkpoints are")
    nothing_lost(arguments.out, arguments.resume)
    return arguments


if __name__ == "__main__":
    main()

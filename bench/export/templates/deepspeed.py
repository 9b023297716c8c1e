"""Trains the model of trial.json with DeepSpeed. README.md says how to start it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed
import torch.distributed as dist

from bench.export import runtime

HERE = Path(__file__).parent
SAVE_EVERY = 1000  # steps between two checkpoints


def main() -> None:
    trial = runtime.read_trial(HERE)
    options = runtime.parse_options(__doc__, trial, save_every=SAVE_EVERY)
    recipe = trial.model.recipe
    runtime.drop_stale_locks()
    deepspeed.init_distributed()
    team = runtime.Team(dist.get_rank(), dist.get_world_size())
    runtime.check_devices(trial, team.size)
    torch.manual_seed(trial.seed)
    runtime.prepare_all(trial.setting)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    family = runtime.family_of(trial.model)
    with device:  # this model has random weights: load yours to go on from them
        built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = runtime.WithLoss(built, trial.model.recipe.aim)
    runtime.apply_all(trial.setting, trial.model, whole, family.blocks(built))
    fused, offload = "fused-optimizer" in trial.setting, "offload" in trial.setting
    shards = runtime.in_group(trial.setting, "sharding") is not None
    optimizer = runtime.optimizer_of(whole, recipe, offload=offload, fused=fused)
    schedule = runtime.make_scheduler(optimizer, recipe)
    engine, *_ = deepspeed.initialize(
        model=whole, optimizer=optimizer, config=str(HERE / "deepspeed.json"), lr_scheduler=schedule
    )
    done = load(engine, options.out) if options.resume and options.out else 0
    with tempfile.TemporaryDirectory() as scratch:
        # Made-up micro-batches of this device, from the next step's first one on: replace them by your own.
        batches = runtime.made_up_batches(trial, device, team, Path(scratch), done * trial.accumulation)
        total = torch.zeros((), device=device)
        log = runtime.StepLog(done, prints=team.rank == 0)
        for step in range(done + 1, options.last_step + 1):
            for _ in range(trial.accumulation):
                batch = next(batches)
                loss = engine(lowered(batch, recipe.half) if shards else batch)
                engine.backward(loss)
                engine.step()  # in every pass: the engine counts them, and updates in a step's last one
                total += loss.detach() / trial.accumulation
            if options.logs(step):
                dist.all_reduce(total)
                log.write(step, float(total) / (step - log.step) / team.size)
                total = torch.zeros_like(total)
            if options.saves(step):
                engine.save_checkpoint(str(options.out), tag=f"step-{step}", client_state={"step": step})
                adapter = Path(str(options.out)) / f"step-{step}" / "adapter"
                runtime.save_adapters(trial, built, adapter, writes=team.rank == 0)
    dist.destroy_process_group()


def load(engine: Any, folder: Path) -> int:
    """Load the checkpoint that DeepSpeed's own file `latest` names; return the number of its step."""
    path, rest = engine.load_checkpoint(str(folder))
    if path is None:
        raise runtime.no_checkpoint(folder)
    return int(rest["step"])


def lowered(batch: dict[str, torch.Tensor], half: str | None) -> dict[str, torch.Tensor]:
    """Convert images to the weights' precision, because nothing autocasts them under ZeRO."""
    dtype = {None: torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[half]
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


if __name__ == "__main__":
    main()

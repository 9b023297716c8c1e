"""Trains the model of trial.json with Hugging Face accelerate. README.md says how to start it."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
)

from bench.base.strict_json import from_json, strict_loads
from bench.cli.arguments import count
from bench.export.guards import finite, nothing_lost, right_devices
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Batches, make_pool
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss, make_optimizer, make_scheduler
from bench.runner.trial.zero_strategy import drop_stale_locks, even_first
from bench.training.methods import apply_all, prepare_all
from bench.training.models import family_of, uses_all_weights
from bench.training.setting import sharded_by

HERE = Path(__file__).parent
SAVE_EVERY = 1000  # steps between two checkpoints
MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def main() -> None:
    arguments = parse()
    trial = from_json(Trial, strict_loads((HERE / "trial.json").read_bytes()))
    recipe = trial.model.recipe
    by = sharded_by(trial.setting)
    fsdp, parameters_too = by == "fsdp", "fsdp-3" in trial.setting
    accelerator = made_for(trial)
    torch.manual_seed(trial.seed)
    prepare_all(trial.setting)
    family = family_of(trial.model)
    built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = WithLoss(built).to(accelerator.device)
    apply_all(trial.setting, trial.model, whole, family.blocks(built))
    team = Team(accelerator.process_index, accelerator.num_processes)
    if fsdp:  # block by block, as measured; accelerate leaves what is sharded already as it is
        from bench.runner.trial.fsdp_strategy import shard

        blocks, device = family.blocks(built), accelerator.device
        shard(whole, blocks, recipe, device, team, parameters_too=parameters_too, offload=False)
    weights = even_first(whole.parameters()) if by == "zero" else whole.parameters()
    optimizer = make_optimizer(weights, recipe, "fused-optimizer" in trial.setting)
    if by == "zero":  # there is no loader of torch's to read it from
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = (
            trial.micro_batch
        )
    model, optimizer = accelerator.prepare(whole, optimizer)
    if fsdp:  # by name: it finds them by their address, which empty shards have in common
        optimizer.param_groups[0]["params"] = list(model.parameters())
    schedule = make_scheduler(optimizer, recipe)
    accelerator.register_for_checkpointing(schedule)
    done = load(accelerator, arguments.out) if arguments.resume else 0
    with tempfile.TemporaryDirectory() as scratch:
        # This device's micro-batches, from its `first` on, without end. These are made up: yours go here.
        first = done * trial.accumulation
        workers = Device.own("cuda" if torch.cuda.is_available() else "cpu").loaders()
        pool = make_pool(trial.model, Path(scratch), trial.seed)
        made_up = Batches(
            trial.model, pool, trial.micro_batch, trial.seed, accelerator.device, team, workers, first
        )
        every = arguments.log_every or recipe.log_every_steps or 10
        total, since, at = torch.zeros((), device=accelerator.device), done, time.perf_counter()
        last = arguments.steps or recipe.steps
        for step in range(done + 1, last + 1):
            for _ in range(trial.accumulation):
                with accelerator.accumulate(model):
                    if fsdp:  # parameters that are not divided stay together between the passes of a step
                        model.set_reshard_after_backward(accelerator.sync_gradients or parameters_too)
                    with accelerator.autocast():
                        loss = model(next(made_up))
                    accelerator.backward(loss)
                    total += loss.detach() / trial.accumulation
                    if accelerator.sync_gradients and recipe.clip_norm is not None:
                        accelerator.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()
            saves = arguments.out and (step == last or step % (arguments.save_every or SAVE_EVERY) == 0)
            if saves or step == last or step % every == 0:
                mean = finite(float(accelerator.reduce(total, "mean")) / (step - since), step)
                seconds = (time.perf_counter() - at) / (step - since)
                if accelerator.is_main_process:
                    print(json.dumps({"step": step, "loss": mean, "step_seconds": seconds}), flush=True)
                total, since, at = torch.zeros_like(total), step, time.perf_counter()
            if saves:
                save(accelerator, arguments.out, step)
    accelerator.end_training()


def made_for(trial: Trial) -> Accelerator:
    by = sharded_by(trial.setting)
    fsdp = by == "fsdp"
    if by == "zero":
        drop_stale_locks()
    accelerator = Accelerator(
        # Gradients that FSDP divides are sent on in each pass: that is what keeps them small.
        gradient_accumulation_plugin=GradientAccumulationPlugin(trial.accumulation, sync_each_batch=fsdp),
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward="fsdp-3" in trial.setting,
            auto_wrap_policy="NO_WRAP", state_dict_type="SHARDED_STATE_DICT",
        ) if fsdp else None,
        # Of replicas: gradients lie in the buckets that are sent, as measured, not once more beside them.
        kwargs_handlers=[
            DistributedDataParallelKwargs(
                gradient_as_bucket_view=True, find_unused_parameters=not uses_all_weights(trial.model)
            )
        ],
        # Of ZeRO it stands in deepspeed.json.
        mixed_precision=None if by == "zero" else MIXED[trial.model.recipe.precision],
    )  # fmt: skip
    right_devices(trial, accelerator.num_processes)
    return accelerator


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """`latest-step` names the last one that is whole."""
    accelerator.save_state(str(folder / f"step-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "latest-step").write_text(str(step))


def load(accelerator: Accelerator, folder: Path) -> int:
    """The steps that were done when it was saved."""
    if not (latest := folder / "latest-step").exists():
        raise SystemExit(f"{folder} holds no checkpoint to go on from")
    step = int(latest.read_text())
    accelerator.load_state(str(folder / f"step-{step}"))
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

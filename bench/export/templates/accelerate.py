"""Trains the model of trial.json with Hugging Face accelerate. README.md says how to start it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
)

from bench.export import runtime

HERE = Path(__file__).parent
SAVE_EVERY = 1000  # steps between two checkpoints


def main() -> None:
    trial = runtime.read_trial(HERE)
    options = runtime.parse_options(__doc__, trial, save_every=SAVE_EVERY)
    recipe = trial.model.recipe
    by = runtime.sharded_by(trial.setting)
    fsdp, parameters_too = by == "fsdp", "fsdp-3" in trial.setting
    accelerator = make_accelerator(trial)
    torch.manual_seed(trial.seed)
    runtime.prepare_all(trial.setting)
    family = runtime.family_of(trial.model)
    # This model has random weights: load yours to go on from them.
    built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = runtime.WithLoss(built, trial.model.recipe.aim).to(accelerator.device)
    runtime.apply_all(trial.setting, trial.model, whole, family.blocks(built))
    team = runtime.Team(accelerator.process_index, accelerator.num_processes)
    if fsdp:  # shard block by block, as measured; accelerate does not shard the model again
        blocks, device = family.blocks(built), accelerator.device
        runtime.shard(whole, blocks, recipe, device, team, parameters_too=parameters_too, offload=False)
    weights = runtime.trained(whole)
    if by == "zero":
        weights = runtime.even_first(weights)
    optimizer = runtime.make_optimizer(weights, recipe, "fused-optimizer" in trial.setting, whole)
    if by == "zero":  # accelerate would read the size from a DataLoader, which this loop lacks
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = (
            trial.micro_batch
        )
    model, optimizer = accelerator.prepare(whole, optimizer)
    if fsdp:  # accelerate identifies parameters by address, and all empty shards share one
        optimizer.param_groups[0]["params"] = runtime.trained(model)
    schedule = runtime.make_scheduler(optimizer, recipe)
    accelerator.register_for_checkpointing(schedule)
    done = load(accelerator, options.out) if options.resume and options.out else 0
    with tempfile.TemporaryDirectory() as scratch:
        # Made-up micro-batches of this device, from the next step's first one on: replace them by your own.
        first = done * trial.accumulation
        batches = runtime.made_up_batches(trial, accelerator.device, team, Path(scratch), first)
        total = torch.zeros((), device=accelerator.device)
        log = runtime.StepLog(done, prints=accelerator.is_main_process)
        for step in range(done + 1, options.last_step + 1):
            for _ in range(trial.accumulation):
                with accelerator.accumulate(model):
                    if fsdp:  # undivided parameters stay gathered between the passes of a step
                        model.set_reshard_after_backward(accelerator.sync_gradients or parameters_too)
                    with accelerator.autocast():
                        loss = model(next(batches))
                    accelerator.backward(loss)
                    runtime.separate_gradients(runtime.trained(model))
                    total += loss.detach() / trial.accumulation
                    if accelerator.sync_gradients and recipe.clip_norm is not None:
                        accelerator.clip_grad_norm_(runtime.trained(model), recipe.clip_norm)
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()
            if options.logs(step):
                log.write(step, float(accelerator.reduce(total, "mean")) / (step - log.step))
                total = torch.zeros_like(total)
            if options.out and options.saves(step):
                save(accelerator, options.out, step)
                adapter, writes = options.out / f"step-{step}" / "adapter", accelerator.is_main_process
                runtime.save_adapters(trial, built, adapter, writes=writes)
    # Free the model before the process group: in the other order gloo can hang (pytorch issue 56297).
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


def make_accelerator(trial: runtime.Trial) -> Accelerator:
    by = runtime.sharded_by(trial.setting)
    if by == "zero":
        runtime.drop_stale_locks()
    plugin = None
    if by == "fsdp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward="fsdp-3" in trial.setting,
            auto_wrap_policy="NO_WRAP",
            state_dict_type="SHARDED_STATE_DICT",
        )
    # Keep replicas' gradients in the buckets that are sent, as measured, without a second copy.
    replicas = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True, find_unused_parameters=not runtime.uses_all_weights(trial.model)
    )
    recipe = trial.model.recipe
    accelerator = Accelerator(
        # FSDP reduces gradients in every pass, so that each device keeps only its share of them.
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            trial.accumulation, sync_each_batch=by == "fsdp"
        ),
        fsdp_plugin=plugin,
        kwargs_handlers=[replicas],
        # With ZeRO, deepspeed.json names the precision.
        mixed_precision=None if by == "zero" else recipe.half or "no",
    )
    runtime.check_devices(trial, accelerator.num_processes)
    return accelerator


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    accelerator.save_state(str(folder / f"step-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        runtime.mark_complete(folder, step)


def load(accelerator: Accelerator, folder: Path) -> int:
    """Load the last complete checkpoint; return the number of its step."""
    step = runtime.latest_step(folder)
    accelerator.load_state(str(folder / f"step-{step}"))
    return step


if __name__ == "__main__":
    main()

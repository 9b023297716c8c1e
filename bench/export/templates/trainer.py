"""Trains the model of trial.json with Hugging Face's Trainer. README.md says how to start it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

from bench.export import runtime

HERE = Path(__file__).parent


class Model(nn.Module):
    """The model with its loss, as the Trainer calls it."""

    _keys_to_ignore_on_save = None  # read if a checkpoint lacks one of the names of a shared table
    accepts_loss_kwargs = False  # the loss is a mean: the Trainer divides it by the accumulated passes

    def __init__(self, whole: runtime.WithLoss) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        if (pixels := batch.get("pixel_values")) is not None and pixels.dtype == torch.uint8:
            batch["pixel_values"] = (
                pixels.float().div(255).sub(runtime.PIXEL_MEAN).div(runtime.PIXEL_DEVIATION)
            )
        return {"loss": self.whole(batch)}

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **_: Any) -> None:
        """Checkpoint every block, as measured, if training_arguments.json asks for checkpointing."""
        self.whole.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs)


class RecipeTrainer(Trainer):
    """The Trainer with the recipe's own optimizer and schedule, and batches as the trial had them."""

    def __init__(self, trial: runtime.Trial, samples: runtime.Samples, **given: Any) -> None:
        super().__init__(**given)
        self.trial = trial
        self.samples = samples

    def create_accelerator_and_postprocess(self) -> None:
        """Keep replicas' gradients in the buckets that are sent, as measured; no argument does that."""
        super().create_accelerator_and_postprocess()
        self.accelerator.ddp_handler.gradient_as_bucket_view = True

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        fused = "fused-optimizer" in self.trial.setting
        weights = runtime.trained(self.model)
        if self.is_deepspeed_enabled:
            weights = runtime.even_first(weights)
        recipe, whole = self.trial.model.recipe, self.model.whole
        self.optimizer = runtime.make_optimizer(weights, recipe, fused, whole)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.is_fsdp_enabled:  # accelerate identifies parameters by address, and empty shards share one
            self.optimizer.param_groups[0]["params"] = runtime.trained(self.model)
        self.lr_scheduler = runtime.make_scheduler(optimizer or self.optimizer, self.trial.model.recipe)
        return self.lr_scheduler

    def compute_loss(self, model: Any, *given: Any, **more: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super().compute_loss(model, *given, **more)
        # Undivided parameters stay gathered between the passes of a step.
        last, divided = self.accelerator.sync_gradients, "fsdp-3" in self.trial.setting
        model.set_reshard_after_backward(last or divided)
        with self.accelerator.autocast():  # accelerate does not autocast a model that is already sharded
            return super().compute_loss(model, *given, **more)

    def training_step(self, *given: Any, **more: Any) -> Tensor:
        loss: Tensor = super().training_step(*given, **more)
        runtime.separate_gradients(runtime.trained(self.model))
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / "adapter"
        built = self.model.whole.model
        runtime.save_adapters(self.trial, built, folder, writes=self.args.should_save)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save a table shared by two parts only once: safetensors refuses copies, and loading fills both."""
        whole = self.model.state_dict() if state_dict is None else state_dict
        first = {tensor.data_ptr(): name for name, tensor in reversed(whole.items())}
        super()._save(output_dir, {name: whole[name] for name in first.values()})

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return this device's made-up micro-batches: replace them by your own."""
        team = runtime.Team(self.args.process_index, self.args.world_size)
        workers = runtime.Device.own("cuda" if torch.cuda.is_available() else "cpu").loaders()
        share = runtime.Share(self.trial.micro_batch, team)
        return DataLoader(self.samples, batch_sampler=share, num_workers=workers, pin_memory=True)


class Log(TrainerCallback):
    """Prints a line for each logged step and for the last one, like the other exported scripts."""

    log: runtime.StepLog

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.log = runtime.StepLog(state.global_step, prints=state.is_world_process_zero)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= control.should_save or state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.log.write(state.global_step, float(logs["loss"]))


def main() -> None:
    trial = runtime.read_trial(HERE)
    given = json.loads((HERE / "training_arguments.json").read_text())
    options = runtime.parse_options(
        __doc__,
        trial,
        steps=given["max_steps"],
        log_every=given["logging_steps"],
        save_every=given["save_steps"],
        out=Path(given["output_dir"]),
    )
    given["max_steps"], given["output_dir"] = options.last_step, str(options.out)
    given["logging_steps"], given["save_steps"] = options.log_every, options.save_every
    if "deepspeed" in given:
        runtime.drop_stale_locks()
        given["deepspeed"] = str(HERE / given["deepspeed"])
    if not torch.cuda.is_available() and (given["bf16"] or given["fp16"]):  # to try the script on a CPU
        given["use_cpu"] = True
    (settings,) = HfArgumentParser(TrainingArguments).parse_dict({**given, "disable_tqdm": True})
    runtime.check_devices(trial, settings.world_size)
    torch.manual_seed(trial.seed)
    # Leave out the methods that the Trainer's arguments or DeepSpeed's file turn on.
    known = [runtime.known_methods()[name] for name in trial.setting]
    methods = [method for method in known if "trainer" not in method.configured_by]
    for method in methods:
        method.prepare()
    family = runtime.family_of(trial.model)
    # This model has random weights: load yours to go on from them.
    built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = runtime.WithLoss(built, trial.model.recipe.aim)
    names = tuple(method.name for method in methods)
    runtime.apply_all(names, trial.model, whole, family.blocks(built))
    with tempfile.TemporaryDirectory() as scratch:
        samples = runtime.samples_of(trial, Path(scratch))
        model = Model(whole)
        if settings.fsdp:  # shard block by block, as measured; the Trainer does not shard the model again
            model.to(settings.device)
            runtime.shard(
                model,
                family.blocks(built),
                trial.model.recipe,
                settings.device,
                runtime.Team(settings.process_index, settings.world_size),
                parameters_too="fsdp-3" in trial.setting,
                offload=False,
            )
        trainer = RecipeTrainer(trial, samples, model=model, args=settings, callbacks=[Log()])
        trainer.train(resume_from_checkpoint=last_complete(settings.output_dir) if options.resume else None)


def last_complete(folder: str) -> str:
    """Return the last complete checkpoint; the Trainer itself would also take an unfinished one."""
    states = {
        int(path.parent.name.rpartition("-")[2]): path for path in Path(folder).glob("*/trainer_state.json")
    }
    if not states:
        raise runtime.no_checkpoint(folder)
    return str(states[max(states)].parent)


if __name__ == "__main__":
    main()

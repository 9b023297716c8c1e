"""Trains the model of trial.json with Hugging Face's Trainer. README.md says how to start it."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

from bench.base.strict_json import from_json, strict_loads
from bench.cli.arguments import count
from bench.export.guards import finite, nothing_lost, right_devices
from bench.records.trial import Trial
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import PIXEL_DEVIATION, PIXEL_MEAN, Samples, Share, make_pool
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import WithLoss, make_optimizer, make_scheduler
from bench.runner.trial.zero_strategy import drop_stale_locks, even_first
from bench.training.methods import known_methods
from bench.training.models import family_of

HERE = Path(__file__).parent


class Model(nn.Module):
    """The model with its loss, as the Trainer calls it."""

    _keys_to_ignore_on_save = None  # asked for where a checkpoint lacks the second name of a shared table
    accepts_loss_kwargs = False  # the loss is a mean: the Trainer divides it by the accumulated passes

    def __init__(self, whole: WithLoss) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        if (pixels := batch.get("pixel_values")) is not None and pixels.dtype == torch.uint8:
            batch["pixel_values"] = pixels.float().div(255).sub(PIXEL_MEAN).div(PIXEL_DEVIATION)
        return {"loss": self.whole(batch)}

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **_: Any) -> None:
        """In every block, as measured: what else the Trainer may ask for is not in its arguments."""
        self.whole.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs)


class RecipeTrainer(Trainer):
    """The Trainer with the recipe's own optimizer and schedule, and batches as the trial had them."""

    def __init__(self, trial: Trial, pool: Path, **given: Any) -> None:
        super().__init__(**given)
        self.trial = trial
        self.pool = pool

    def create_accelerator_and_postprocess(self) -> None:
        """Replicas' gradients lie in the buckets that are sent, as measured; no argument says it."""
        super().create_accelerator_and_postprocess()
        self.accelerator.ddp_handler.gradient_as_bucket_view = True

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        fused = "fused-optimizer" in self.trial.setting
        weights = self.model.parameters()
        if self.is_deepspeed_enabled:
            weights = even_first(weights)
        self.optimizer = make_optimizer(weights, self.trial.model.recipe, fused)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.is_fsdp_enabled:  # accelerate finds them by their address, which empty shards have in common
            self.optimizer.param_groups[0]["params"] = list(self.model.parameters())
        self.lr_scheduler = make_scheduler(optimizer or self.optimizer, self.trial.model.recipe)
        return self.lr_scheduler

    def compute_loss(self, model: Any, *given: Any, **more: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super().compute_loss(model, *given, **more)
        # Parameters that are not divided stay together between the passes of a step.
        last, divided = self.accelerator.sync_gradients, "fsdp-3" in self.trial.setting
        model.set_reshard_after_backward(last or divided)
        with self.accelerator.autocast():  # which accelerate leaves to us where the model comes sharded
            return super().compute_loss(model, *given, **more)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """A table that two parts share goes in once: safetensors takes none twice, and loading fills both."""
        whole = self.model.state_dict() if state_dict is None else state_dict
        first = {tensor.data_ptr(): name for name, tensor in reversed(whole.items())}
        super()._save(output_dir, {name: whole[name] for name in first.values()})

    def get_train_dataloader(self) -> DataLoader[Any]:
        """These data are made up: yours go here."""
        team = Team(self.args.process_index, self.args.world_size)
        samples = Samples(self.trial.model, self.pool, self.trial.seed)
        workers = Device.own("cuda" if torch.cuda.is_available() else "cpu").loaders()
        share = Share(self.trial.micro_batch, team)
        return DataLoader(samples, batch_sampler=share, num_workers=workers, pin_memory=True)


class Log(TrainerCallback):
    """A line a logged step, and one of the last, as our own script writes it."""

    def __init__(self) -> None:
        self.at, self.since = time.perf_counter(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.at, self.since = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= control.should_save or state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" not in logs:
            return
        finite(float(logs["loss"]), state.global_step)
        if state.is_world_process_zero:
            seconds = (time.perf_counter() - self.at) / (state.global_step - self.since)
            print(
                json.dumps({"step": state.global_step, "loss": logs["loss"], "step_seconds": seconds}),
                flush=True,
            )
            self.at, self.since = time.perf_counter(), state.global_step


def main() -> None:
    arguments = parse()
    trial = from_json(Trial, strict_loads((HERE / "trial.json").read_bytes()))
    given = json.loads((HERE / "training_arguments.json").read_text())
    if arguments.steps:
        given["max_steps"] = arguments.steps
    given["output_dir"] = str(arguments.out or given["output_dir"])
    given["logging_steps"] = arguments.log_every or given["logging_steps"]
    given["save_steps"] = arguments.save_every or given["save_steps"]
    if "deepspeed" in given:
        drop_stale_locks()
        given["deepspeed"] = str(HERE / given["deepspeed"])
    if not torch.cuda.is_available() and (given["bf16"] or given["fp16"]):  # to try it out
        given["use_cpu"] = True
    (settings,) = HfArgumentParser(TrainingArguments).parse_dict({**given, "disable_tqdm": True})
    right_devices(trial, settings.world_size)
    nothing_lost(Path(given["output_dir"]), arguments.resume)
    torch.manual_seed(trial.seed)
    # The Trainer's arguments, or DeepSpeed's file, turn the other methods on.
    methods = [known_methods()[name] for name in trial.setting]
    applied = [method for method in methods if "trainer" not in method.configured_by]
    for method in applied:
        method.prepare()
    family = family_of(trial.model)
    built = family.build(trial.model, kernels="kernels" in trial.setting)
    whole = WithLoss(built)
    for method in applied:
        method.apply(trial.model, whole, family.blocks(built))
    with tempfile.TemporaryDirectory() as scratch:
        pool = make_pool(trial.model, Path(scratch), trial.seed)
        model = Model(whole)
        if settings.fsdp:  # block by block, as measured; the Trainer leaves what is sharded already as it is
            from bench.runner.trial.fsdp_strategy import shard

            model.to(settings.device)
            shard(
                model, family.blocks(built), trial.model.recipe, settings.device,
                Team(settings.process_index, settings.world_size),
                parameters_too="fsdp-3" in trial.setting, offload=False,
            )  # fmt: skip
        trainer = RecipeTrainer(trial, pool, model=model, args=settings, callbacks=[Log()])
        trainer.train(resume_from_checkpoint=last_whole(settings.output_dir) if arguments.resume else None)


def last_whole(folder: str) -> str:
    """The last checkpoint that was written to its end: the Trainer itself takes one that was not, too."""
    found = {
        int(path.parent.name.rpartition("-")[2]): path for path in Path(folder).glob("*/trainer_state.json")
    }
    if not found:
        raise SystemExit(f"{folder} holds no checkpoint to go on from")
    return str(found[max(found)].parent)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=count, help="default: the recipe's")
    parser.add_argument("--out", type=Path, help="where checkpoints go, the last step's too")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--log-every", type=count, metavar="STEPS", help="default: the recipe's, or 10")
    parser.add_argument(
        "--save-every", type=count, metavar="STEPS", help="default: training_arguments.json's"
    )
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Files for Hugging Face's Trainer: TrainingArguments, and a DeepSpeed configuration if ZeRO shards.

Pure: takes a trial and returns the texts of the files.
"""

from __future__ import annotations

from typing import Any

from bench.base.strict_json import pretty_json
from bench.export.accelerate import fsdp_config, refuse
from bench.export.deepspeed import configuration
from bench.records.trial import Trial
from bench.training.models import Recipe, uses_all_weights
from bench.training.schedules import WarmupStableDecay
from bench.training.setting import sharded_by

COMMAND = "torchrun --standalone --nproc-per-node {gpus} train.py --out checkpoints"
WEIGHTS = "`checkpoints/checkpoint-N/model.safetensors`; every name begins with `whole.model.`"
NEEDS = ("accelerate",)
# `refuse` is accelerate's: the Trainer runs on accelerate and has the same limits.
__all__ = ["COMMAND", "NEEDS", "NOTE", "WEIGHTS", "files", "refuse"]

NOTE = """`train.py` gives the Trainer the recipe's own optimizer and schedule; `training_arguments.json`
alone comes as near to the recipe as its arguments can.
"""


def files(trial: Trial, save_every: int) -> dict[str, str]:
    """Return the Trainer's arguments, and the configuration of DeepSpeed for ZeRO, by name."""
    contents = {"training_arguments.json": pretty_json(training_arguments(trial, save_every)).decode()}
    if sharded_by(trial.setting) == "zero":
        contents["deepspeed.json"] = configuration(trial)
    return contents


def training_arguments(trial: Trial, save_every: int) -> dict[str, Any]:
    """Return TrainingArguments in the form that `HfArgumentParser.parse_json_file` reads."""
    recipe, setting = trial.model.recipe, trial.setting
    o = recipe.optimizer
    given: dict[str, Any] = {
        "output_dir": "checkpoints",
        "per_device_train_batch_size": trial.micro_batch,
        "gradient_accumulation_steps": trial.accumulation,
        "max_steps": recipe.steps,
        "bf16": recipe.half == "bf16",
        "fp16": recipe.half == "fp16",
        "tf32": "tf32" in setting,
        "torch_compile": "compile" in setting,
        "gradient_checkpointing": "checkpointing" in setting,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "optim": o.trainer_name(fused="fused-optimizer" in setting),
        "learning_rate": o.learning_rate,
        "adam_beta1": o.beta1,
        "adam_beta2": o.beta2,
        "adam_epsilon": o.epsilon,
        "weight_decay": o.weight_decay,
        "max_grad_norm": recipe.clip_norm or 0.0,
        **_schedule(recipe),
        "seed": trial.seed,
        "logging_steps": recipe.log_every_steps or 10,
        "save_strategy": "steps",
        "save_steps": save_every,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,  # else a NaN loss is logged as the last finite one
        "ddp_find_unused_parameters": not uses_all_weights(trial.model),
        "report_to": "none",
    }
    if sharded_by(setting) == "zero":
        given["deepspeed"] = "deepspeed.json"
    if sharded_by(setting) == "fsdp":
        given["fsdp"] = True
        given["fsdp_config"] = fsdp_config(trial)
        # FSDP reduces gradients in every pass, so that each device keeps only its share of them.
        given["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return given


def _schedule(recipe: Recipe) -> dict[str, Any]:
    """Return the schedule's arguments, as near to the recipe as the Trainer's schedules come."""
    schedule = recipe.schedule
    given: dict[str, Any] = {"warmup_steps": schedule.warmup_steps}
    if isinstance(schedule, WarmupStableDecay):
        kwargs = {
            "num_decay_steps": schedule.decaying_steps(recipe.steps),
            "decay_type": schedule.decay,
            "min_lr_ratio": schedule.final_ratio,
        }
        return given | {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": kwargs}
    name = "constant_with_warmup" if schedule.name == "constant" else schedule.name
    return given | {"lr_scheduler_type": name}

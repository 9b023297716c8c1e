"""Hugging Face accelerate: a configuration for `accelerate launch`, and a loop around its Accelerator."""

from __future__ import annotations

from typing import Any

from bench.codec import pretty_json
from bench.export import template
from bench.export.deepspeed import configuration, refuse_ours
from bench.methods import in_group
from bench.result import Trial

COMMAND = "accelerate launch --config_file accelerate.json train.py --out checkpoints"
NOTE = ""


def refuse(trial: Trial) -> str | None:
    return refuse_ours(trial, "its FSDP wraps by class name, not block by block as measured")


def files(trial: Trial) -> dict[str, str]:
    made = {"train.py": template("accelerate"), "accelerate.json": pretty_json(launch(trial)).decode()}
    if in_group(trial.setting, "sharding"):
        made["deepspeed.json"] = pretty_json(configuration(trial, accumulation=trial.accumulation)).decode()
    return made


def launch(trial: Trial) -> dict[str, Any]:
    """What `accelerate config` would have asked for; a JSON file is one that it reads."""
    shards = in_group(trial.setting, "sharding") is not None
    several = "MULTI_GPU" if trial.gpus > 1 else "NO"
    given: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED" if shards else several,
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": trial.gpus,
        "mixed_precision": "no" if trial.model.recipe.precision == "fp32" else trial.model.recipe.precision,
        "use_cpu": False,
        "main_training_function": "main",
        "debug": False,
    }
    if shards:
        given["mixed_precision"] = "no"  # deepspeed.json says it
        given["deepspeed_config"] = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": False}
    return given

"""Files for Hugging Face accelerate: the launcher's configuration, and a loop with `Accelerator`.

Pure: takes a trial and returns the texts of the files.
"""

from __future__ import annotations

from typing import Any

from bench.base.strict_json import pretty_json
from bench.export.deepspeed import configuration
from bench.records.trial import Trial
from bench.training.methods import not_exported
from bench.training.setting import sharded_by

COMMAND = "accelerate launch --config_file accelerate.json train.py --out checkpoints"
WEIGHTS = "`checkpoints/step-N/model.safetensors`; every name begins with `model.`"
NEEDS = ("accelerate",)
SEVERAL = (
    "accelerate launch --config_file accelerate.json --num_machines {nodes} --machine_rank NODE "
    "--main_process_ip HOST --main_process_port 29400 train.py --out checkpoints  # NODE: 0 on HOST, then 1"
)


def refuse(trial: Trial) -> str | None:
    """Return why accelerate cannot express the trial; None if it can."""
    if reason := not_exported("accelerate", trial.setting, trial.model):
        return reason
    if sharded_by(trial.setting) == "fsdp" and "offload" in trial.setting:
        return "offloaded FSDP2 was not tested with it"
    return None


def fsdp_config(trial: Trial) -> dict[str, Any]:
    """Return accelerate's FSDP options, with NO_WRAP because the script itself shards the model by blocks."""
    return {
        "version": 2,
        "reshard_after_forward": "fsdp-3" in trial.setting,
        "auto_wrap_policy": "NO_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def files(trial: Trial, _save_every: int) -> dict[str, str]:
    """Return the launch file, and the configuration of DeepSpeed for ZeRO, by name."""
    contents = {"accelerate.json": pretty_json(launch(trial)).decode()}
    if sharded_by(trial.setting) == "zero":
        contents["deepspeed.json"] = configuration(trial)
    return contents


def launch(trial: Trial) -> dict[str, Any]:
    """Return the configuration that `accelerate config` would write, as JSON, which accelerate reads too."""
    sharder, replicas = sharded_by(trial.setting), "MULTI_GPU" if trial.gpus > 1 else "NO"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": {"zero": "DEEPSPEED", "fsdp": "FSDP", None: replicas}[sharder],
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": trial.gpus,
        "mixed_precision": trial.model.recipe.half or "no",
        "use_cpu": False,
        "main_training_function": "main",
        "debug": False,
    }
    if sharder == "fsdp":
        config["fsdp_config"] = {f"fsdp_{name}": value for name, value in fsdp_config(trial).items()}
    if sharder == "zero":
        del config["mixed_precision"]  # deepspeed.json names it; accelerate refuses it in both files
        config["deepspeed_config"] = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": False}
    return config

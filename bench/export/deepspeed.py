"""Files for DeepSpeed: its configuration, and a loop with its engine. Unsharded settings use ZeRO stage 0.

Pure: takes a trial and returns the texts of the files.
"""

from __future__ import annotations

from typing import Any

from bench.base.strict_json import pretty_json
from bench.records.trial import Trial
from bench.training.methods import not_exported
from bench.training.models import Half
from bench.training.setting import in_group, sharded_by

COMMAND = "deepspeed --num_gpus {gpus} train.py --out checkpoints"
WEIGHTS = (
    '"module" of `checkpoints/step-N/mp_rank_00_model_states.pt`, for torch.load;\n'
    "every name begins with `model.`"
)
NEEDS = ("deepspeed",)


def refuse(trial: Trial) -> str | None:
    """Return why DeepSpeed cannot express the trial; None if it can."""
    if reason := not_exported("deepspeed", trial.setting, trial.model):
        return reason
    return "FSDP2 is PyTorch's own" if sharded_by(trial.setting) == "fsdp" else None


def files(trial: Trial, _save_every: int) -> dict[str, str]:
    """Return the configuration of DeepSpeed by its name."""
    return {"deepspeed.json": configuration(trial)}


def configuration(trial: Trial) -> str:
    """Return the text of deepspeed.json (deepspeed.ai, "DeepSpeed Configuration JSON").

    It must agree with the configuration of trials (bench/runner/trial/zero_strategy.py).
    """
    recipe, offload = trial.model.recipe, "offload" in trial.setting
    sharding = in_group(trial.setting, "sharding")
    stage = int(sharding.removeprefix("zero-")) if sharding else 0
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, Any] = {
        "train_batch_size": recipe.batch_size,
        "train_micro_batch_size_per_gpu": trial.micro_batch,
        "gradient_accumulation_steps": trial.accumulation,
        "gradient_clipping": recipe.clip_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bool(stage) and recipe.half == "bf16"},
        "fp16": {"enabled": bool(stage) and recipe.half == "fp16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": 1 << 40,
        **({} if stage or recipe.half is None else {"torch_autocast": _autocast(recipe.half)}),
    }
    return pretty_json(settings).decode()


def _autocast(half: Half) -> dict[str, Any]:
    """Return autocast's options as in an unsharded trial: weights and the gradients sent are in fp32."""
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[half]
    return {"enabled": True, "dtype": dtype, "lower_precision_safe_modules": []}

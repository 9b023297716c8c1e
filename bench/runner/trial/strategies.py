"""Choose the strategy of a setting. Only the chosen strategy's module and packages are imported."""

from __future__ import annotations

import torch
from torch import nn

from bench.records.trial import Trial
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import DataParallel, SingleDevice, Strategy, WithLoss
from bench.training.models import uses_all_weights
from bench.training.setting import in_group


def make_strategy(
    trial: Trial, whole: WithLoss, blocks: list[nn.Module], device: torch.device, team: Team
) -> Strategy:
    """Return the strategy that trains `whole`, whose repeated units are `blocks`, in the trial's setting."""
    strategy = _make_strategy(trial, whole, blocks, device, team)
    if "cuda-graphs" in trial.setting:
        from bench.runner.trial.recorded_pass import record_passes

        assert isinstance(strategy, SingleDevice)
        record_passes(strategy)
    return strategy


def _make_strategy(
    trial: Trial, whole: WithLoss, blocks: list[nn.Module], device: torch.device, team: Team
) -> Strategy:
    setting, recipe = trial.setting, trial.model.recipe
    fused, offload = "fused-optimizer" in setting, "offload" in setting
    match in_group(setting, "sharding"):
        case None if "half-weights" in setting:
            from bench.runner.trial.half_weights_strategy import HalfWeightsStrategy

            return HalfWeightsStrategy(whole, recipe, device, team, fused)
        case None:
            if team.size == 1:
                return SingleDevice(whole, recipe, device, fused)
            return DataParallel(whole, recipe, device, fused, all_used=uses_all_weights(trial.model))
        case "fsdp-2" | "fsdp-3" as name:
            from bench.runner.trial.fsdp_strategy import OffloadedFsdp, ShardedFsdp

            sharded = OffloadedFsdp if offload else ShardedFsdp
            parameters_too = name == "fsdp-3"
            return sharded(whole, blocks, recipe, device, team, parameters_too=parameters_too, fused=fused)
        case name:
            from bench.runner.trial.zero_strategy import ZeroStrategy

            stage = int(str(name).removeprefix("zero-"))
            return ZeroStrategy(
                whole, recipe, device, trial.micro_batch, stage=stage, offload=offload, fused=fused
            )

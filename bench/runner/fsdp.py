"""FSDP2 (`fully_shard`): every device holds a part of each parameter, gradient and moment.

Gradients are divided, so each pass sends them on: that is what keeps them small, and what the
measured slope of a pass then includes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from bench.models import Recipe
from bench.runner.loop import HALF, Batch, Loop
from bench.runner.team import Team


class Sharded(Loop):
    """fp32 shards; what a block computes with is gathered in the recipe's precision."""

    def __init__(
        self,
        whole: nn.Module,
        blocks: list[nn.Module],
        recipe: Recipe,
        device: torch.device,
        team: Team,
        *,
        parameters_too: bool,
        offload: bool,
        fused: bool,
    ) -> None:
        self.parameters_too = parameters_too
        shard(whole, blocks, recipe, device, team, parameters_too=parameters_too, offload=offload)
        super().__init__(whole, recipe, device, fused or offload)  # on the host the plain update crawls

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        # Where parameters are not divided, they stay together between the passes of a step.
        self.whole.set_reshard_after_backward(sync or self.parameters_too)
        return super().forward_backward(batch, passes, sync)


def shard(
    whole: nn.Module, blocks: list[nn.Module], recipe: Recipe, device: torch.device, team: Team, *,
    parameters_too: bool, offload: bool,
) -> None:  # fmt: skip
    """Block by block, and what is left with the whole; in place."""
    half = HALF.get(recipe.precision)
    options = {
        "mesh": init_device_mesh(device.type, (team.size,)),
        # Reduced in fp32, as replicas are; inputs stay what they are, as under autocast alone.
        "mp_policy": MixedPrecisionPolicy(half, torch.float32 if half else None, None, False),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        "reshard_after_forward": parameters_too,
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(whole, **options)

"""FSDP2 (`fully_shard`): every device holds a part of each parameter, gradient and moment.

Gradients are divided, so each pass sends them on: that is what keeps them small, and what the
measured slope of a pass then includes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import HALF, Batch, SingleDevice
from bench.training.models import Recipe
from bench.training.vendor import torch_inside


class ShardedFsdp(SingleDevice):
    """fp32 shards; what a block computes with is gathered in the recipe's precision."""

    on_host: ClassVar[bool] = False

    def __init__(
        self,
        whole: nn.Module,
        blocks: list[nn.Module],
        recipe: Recipe,
        device: torch.device,
        team: Team,
        *,
        parameters_too: bool,
        fused: bool,
    ) -> None:
        self.parameters_too = parameters_too
        offload = self.on_host
        shard(whole, blocks, recipe, device, team, parameters_too=parameters_too, offload=offload)
        super().__init__(whole, recipe, device, fused or offload)  # on the host the plain update crawls

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        # Where parameters are not divided, they stay together between the passes of a step.
        self.whole.set_reshard_after_backward(sync or self.parameters_too)
        return super().forward_backward(batch, passes, sync)


class OffloadedFsdp(ShardedFsdp):
    """Shards live in the host's memory, and gradients are added up there, while the device computes.

    FSDP2 would add them up itself, inside of the backward pass: where a gradient lies already, it waits for
    the next one, copied through memory that is not pinned, and adds that alone. Of mamba-2.8b the second pass
    of a step took 10.8 s so, the first one, which finds no gradient, 3.0 s together with the update
    (results/settings-h200/mamba-2.8b-1gpu-rest-2.tar). So no pass finds one.
    """

    on_host: ClassVar[bool] = True
    # A step's last gradients are added when no pass is left to hide it; where they are its only ones, never.
    even_from: int = 2

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.sums: dict[nn.Parameter, Tensor] = {}
        torch_inside.keep_loss_scale_on_host(self.scaler)

    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        self.set_aside()  # the device is still at what was only begun here
        return loss

    def set_aside(self) -> None:
        """What the pass before this one left."""
        for weight in self.weights:
            if weight.grad is not None:
                if weight in self.sums:
                    _part(self.sums[weight]).add_(_part(weight.grad))
                else:
                    self.sums[weight] = weight.grad
                weight.grad = None

    def update(self, norm_wanted: bool = False) -> float | None:
        self.set_aside()
        for weight, total in self.sums.items():
            weight.grad = total
        self.sums.clear()
        return super().update(norm_wanted)


def _part(gradient: Tensor) -> Tensor:
    """This device's, as a plain tensor: adding two of them is one kernel."""
    assert isinstance(gradient, DTensor)
    return gradient.to_local()


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
        "offload_policy": CPUOffloadPolicy(torch.cuda.is_available()) if offload else OffloadPolicy(),
        "reshard_after_forward": parameters_too,
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(whole, **options)

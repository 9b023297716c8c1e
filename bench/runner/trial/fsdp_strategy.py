"""FSDP2 (`fully_shard`): every device holds a part of each parameter, gradient and moment.

Each pass sends its gradients to the devices that hold their parts, so that no device keeps whole gradients;
the measured time of a pass includes the sending. Imports torch at module level.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import HALF, Batch, SingleDevice, WithLoss, lengthen_scalars
from bench.training.models import Recipe
from bench.training.vendor import torch_inside


class ShardedFsdp(SingleDevice):
    """Keeps shards in fp32; gathers each block's weights in the recipe's precision."""

    on_host: ClassVar[bool] = False

    def __init__(
        self,
        whole: WithLoss,
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
        super().__init__(whole, recipe, device, fused or offload)  # unfused is very slow on the host

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run a pass; parameters are sharded again after the last pass, or after each with fsdp-3."""
        # Without `parameters_too`, parameters stay gathered between the passes of a step.
        self.whole.set_reshard_after_backward(sync or self.parameters_too)
        return super().forward_backward(batch, passes, sync)


class OffloadedFsdp(ShardedFsdp):
    """Shards in the host's memory, where gradients are added up while the device computes.

    FSDP2 itself adds gradients up within the backward pass: if a parameter already has a gradient, it
    waits for the next one, which is copied through memory that is not pinned. The second pass of a step of
    mamba-2.8b then took 10.8 s; the first, which finds no gradients, 3.0 s including the update
    (results/settings-h200/mamba-2.8b-1gpu-rest-2.tar). So gradients are set aside before every backward pass.
    """

    on_host: ClassVar[bool] = True
    # No pass hides the addition of a step's last gradients; a step of one pass has nothing to add.
    even_from: int = 2

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.sums: dict[nn.Parameter, Tensor] = {}
        torch_inside.keep_loss_scale_on_host(self.scaler)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the loss while the host adds the gradients of the pass before."""
        loss = super().forward(batch)
        self.set_aside()  # the host adds while the device still computes the loss
        return loss

    def set_aside(self) -> None:
        """Move gradients of the previous pass into the sums."""
        for weight in self.weights:
            if weight.grad is not None:
                if weight in self.sums:
                    _part(self.sums[weight]).add_(_part(weight.grad))
                else:
                    self.sums[weight] = weight.grad
                weight.grad = None

    def update(self, norm_wanted: bool = False) -> float | None:
        """Give the optimizer the sums of gradients that the host has added."""
        self.set_aside()
        for weight, total in self.sums.items():
            weight.grad = total
        self.sums.clear()
        return super().update(norm_wanted)


def _part(gradient: Tensor) -> Tensor:
    """Return this device's part as a plain tensor: adding two plain tensors is one kernel."""
    assert isinstance(gradient, DTensor)
    return gradient.to_local()


def shard(
    whole: WithLoss,
    blocks: list[nn.Module],
    recipe: Recipe,
    device: torch.device,
    team: Team,
    *,
    parameters_too: bool,
    offload: bool,
) -> None:
    """Shard each block, then the remaining parameters with the whole module, in place."""
    half = HALF.get(recipe.precision)
    options = {
        "mesh": init_device_mesh(device.type, (team.size,)),
        # Gradients are reduced in fp32, as replicas' are; inputs are not cast, as under autocast alone.
        "mp_policy": MixedPrecisionPolicy(half, torch.float32 if half else None, None, False),
        "offload_policy": CPUOffloadPolicy(torch.cuda.is_available()) if offload else OffloadPolicy(),
        "reshard_after_forward": parameters_too,
    }
    lengthen_scalars(whole)
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(whole, **options)

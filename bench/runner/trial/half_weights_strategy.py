"""Half-precision weights, with an fp32 copy that the optimizer updates and fp32 sums of their gradients.

No weight is cast within a pass, and activations between blocks are half as large as under autocast. Imports
torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.runner.trial.fused_gradient_sums import (
    add_up_in_products,
    add_up_rows,
    adds_up,
    adds_up_rows,
    groups_to_join,
    join_products,
)
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import (
    HALF,
    Batch,
    SingleDevice,
    WithLoss,
    lowered,
    make_moments,
    trained,
)
from bench.training.models import Recipe
from bench.training.vendor import torch_inside

ALIGNED = 128  # elements; vectorised kernels are fast on tensors that start at multiples


class HalfWeightsStrategy(SingleDevice):
    """`self.weights` are fp32 copies of `self.computed`, the weights of the module that are trained."""

    def __init__(
        self, whole: WithLoss, recipe: Recipe, device: torch.device, team: Team, fused: bool
    ) -> None:
        self.team = team
        super().__init__(whole, recipe, device, fused)
        self.computed = trained(whole)
        copies = dict(zip(self.computed, self.weights, strict=True))
        joined = groups_to_join(
            [[layer for layer in group if layer.weight in copies] for group in whole.siblings]
        )
        side_by_side = dict.fromkeys(layer.weight for group in joined for layer in group)
        self.gradients = _flat_gradients([copies[weight] for weight in side_by_side | copies])
        half = HALF[recipe.precision]
        # Buffers keep their precision: `apply_all` lowers tables that are added to embeddings.
        for weight in set(whole.parameters()) - torch_inside.batch_norm_weights(whole):
            weight.data = weight.data.to(half)
        for weight, copy in copies.items():
            weight.register_post_accumulate_grad_hook(_hook_adding_to(copy))
        for group in joined:
            join_products(group, self.gradients, copies[group[0].weight].grad.storage_offset())
        for layer in whole.modules():
            # A computed weight, by weight_norm for instance, has no sums.
            if adds_up(layer) and layer.weight in copies and layer.weight not in side_by_side:
                add_up_in_products(layer, copies[layer.weight].grad)
            elif adds_up_rows(layer) and layer.weight in copies:
                add_up_rows(layer, copies[layer.weight].grad)

    def updated_weights(self) -> list[nn.Parameter]:
        """Return copies of the trained weights, taken before the model is lowered to half precision."""
        return [nn.Parameter(weight.detach().clone()) for weight in trained(self.whole)]

    def forward_backward(self, batch: Batch, passes: int, sync: bool) -> Tensor:
        """Run a pass; after the last one, average the gradients of all GPUs in one exchange."""
        loss = super().forward_backward(batch, passes, sync)
        if sync and self.team.size > 1:
            dist.all_reduce(self.gradients)
            self.gradients /= self.team.size
        return loss

    def run_pass(self, batch: Batch) -> Tensor:
        """Add the gradients of a scaled loss; returns the share of the loss, unscaled."""
        self.whole.loss_scale = scale = self.scaler.scale(self.share)
        loss = self.forward(lowered(batch, self.recipe))
        (loss * scale).backward()
        return (loss * self.share).detach()

    def update(self, norm_wanted: bool = False) -> float | None:
        """Update the fp32 copies and round them into the weights of the model."""
        norm = super().update(norm_wanted)
        with torch.no_grad():
            torch_inside.copy_each(self.computed, self.weights)
        return norm

    def clear(self) -> None:
        """Write zeros: all gradients share one tensor, which stays."""
        self.gradients.zero_()

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the loss of a batch in half precision, without autocast."""
        with torch.no_grad():
            return self.forward(lowered(batch, self.recipe))

    def state(self) -> dict[str, Any]:
        """Return fp32 copies by the names of the module's weights, and their moments in the same order."""
        make_moments(self.optimizer)
        return {"model": self.whole.state_dict() | self.copies(), "optimizer": self.optimizer.state_dict()}

    def copies(self) -> dict[str, Tensor]:
        """Return the fp32 copies by the names of the module's weights."""
        names = [name for name, weight in self.whole.named_parameters() if weight.requires_grad]
        return dict(zip(names, (weight.detach() for weight in self.weights), strict=True))

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Load weights into the model and, unrounded, into the fp32 copies."""
        self.whole.load_state_dict(state["model"])  # casts the weights to half precision
        for name, copy in self.copies().items():
            copy.copy_(state["model"][name])
        self.optimizer.load_state_dict(state["optimizer"])


def _flat_gradients(weights: list[nn.Parameter]) -> Tensor:
    """Make all gradients views of one buffer, which is cleared and exchanged as a whole. Returns it."""
    padded = [-(-weight.numel() // ALIGNED) * ALIGNED for weight in weights]
    flat = torch.zeros(sum(padded), device=weights[0].device)
    for weight, part in zip(weights, flat.split(padded), strict=True):
        weight.grad = part[: weight.numel()].view_as(weight)
    return flat


def _hook_adding_to(copy: nn.Parameter) -> Callable[[Tensor], None]:
    """Return a hook that adds a weight's complete gradient to the copy's and frees the weight's."""

    def add_gradient(weight: Tensor) -> None:
        assert copy.grad is not None
        if weight.grad is None:  # already added by the product (fused_gradient_sums.py)
            return
        _add(copy.grad, weight.grad)
        weight.grad = None

    return add_gradient


def _add(total: Tensor, more: Tensor) -> None:
    if total.is_cuda and more.is_contiguous():
        from bench.training.triton.add import add  # imports Triton, which needs a GPU

        add(total, more)
    else:
        total += more

"""Muon's update: equal matrices are stacked, and orthogonalised together in batched products in bf16.

torch.optim.Muon updates one matrix after the other, and takes neither convolutions nor stacks of experts.
Imports torch at module level.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.training.optimizers.updates.beside_adamw import BesideAdamW

A, B, C = 3.4445, -4.7750, 2.0315  # of the iteration a X + b (X X') X + c (X X')^2 X, by Keller Jordan
LEAST_NORM = 1e-7  # a matrix of zeros stays one
AT_ONCE = 2**26  # numbers of a batch; each of its few copies in bf16 takes 128 MiB


class MuonUpdate(BesideAdamW):
    """Muon for the matrices of blocks, AdamW for all other weights.

    With several GPUs, each one updates all matrices, so that replicas stay equal without exchanging updates.
    """

    def __init__(
        self,
        matrices: Mapping[nn.Parameter, int],
        options: Mapping[str, Any],
        rest: Sequence[nn.Parameter],
        adamw_options: Mapping[str, Any],
        fused: bool,
    ) -> None:
        """Make the update. `matrices` has for each weight its number of matrices: 1, or that of experts."""
        self.counts = dict(matrices)
        super().__init__(list(matrices), options, rest, adamw_options, fused)

    def update_own(self, group: Mapping[str, Any]) -> None:
        """Update the matrices of a group, those of one shape together."""
        alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                alike[self._stacked(weight, weight).shape].append(weight)
        for shape, weights in alike.items():
            for batch in _batches(weights, max(1, AT_ONCE // math.prod(shape))):
                self._update_alike(batch, group)

    def _stacked(self, weight: nn.Parameter, tensor: Tensor) -> Tensor:
        """Return a tensor of the weight's shape as [matrices, rows, columns]."""
        return tensor.flatten(1).unsqueeze(0) if self.counts[weight] == 1 else tensor

    def _update_alike(self, weights: Sequence[nn.Parameter], group: Mapping[str, Any]) -> None:
        """Update weights that hold equally many matrices of the same shape."""
        count, rows, columns = self._stacked(weights[0], weights[0]).shape
        stack = torch.empty(
            len(weights) * count, rows, columns, dtype=torch.bfloat16, device=weights[0].device
        )
        for weight, place in zip(weights, stack.split(count), strict=True):
            place.copy_(self._stacked(weight, self._with_momentum(weight, group)))
        stack = orthogonalised(stack, group["ns_steps"])
        rate, decay = group["lr"], 1 - group["lr"] * group["weight_decay"]
        rate *= adjustment(group["adjust_lr"], rows, columns)
        for weight, direction in zip(weights, stack.split(count), strict=True):
            weight.mul_(decay).add_(direction.reshape(weight.shape), alpha=-rate)

    def _with_momentum(self, weight: nn.Parameter, group: Mapping[str, Any]) -> Tensor:
        """Add the gradient to the weight's momentum; return the direction before it is orthogonalised."""
        gradient, state, momentum = weight.grad, self.state[weight], group["momentum"]
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        kept: Tensor = state["momentum"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(kept, momentum) if group["nesterov"] else kept


def orthogonalised(matrices: Tensor, steps: int) -> Tensor:
    """Return matrices with the singular vectors of the given ones, and singular values near one.

    Newton-Schulz iterations, whose coefficients bring small singular values up fast: after five, values lie
    between about 0.7 and 1.2. `matrices` is [matrices, rows, columns].
    """
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices  # the product of each matrix with its transpose is then smaller
    norms = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32)
    x = x / norms.clamp(min=LEAST_NORM).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x


def adjustment(kind: str, rows: int, columns: int) -> float:
    """Return the factor on the learning rate for matrices of this shape."""
    if kind == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))  # the root mean square of an update is AdamW's, about 0.2


def _batches(weights: Sequence[nn.Parameter], size: int) -> Iterator[Sequence[nn.Parameter]]:
    for start in range(0, len(weights), size):
        yield weights[start : start + size]

"""The update of AdamW with 8-bit moments, in plain operations of torch; compiled to one kernel on a GPU.

Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training.optimizers.updates import BLOCK
from bench.training.optimizers.updates.beside_adamw import BesideAdamW
from bench.training.vendor import compiler_inside

DECADES = 7  # of levels below one
AT_ONCE = 2**16  # blocks; uncompiled, each number that is kept on the way takes 64 MiB for one call
TINIEST = 1e-38  # a block of zeros has no scale
Levels = tuple[Tensor, Tensor]  # 256 ascending numbers, and the 255 middles between them
CODES = ("mean", "root")  # entries of a weight's state in 8 bits


class AdamW8bitUpdate(BesideAdamW):
    """AdamW; `large` weights have moments in 8 bits, `small` ones in fp32."""

    def __init__(
        self,
        large: Sequence[nn.Parameter],
        small: Sequence[nn.Parameter],
        options: Mapping[str, Any],
        fused: bool,
    ) -> None:
        super().__init__(large, options, small, options, fused)
        self.update: Callable[..., None] = update_blocks
        if fused and large and large[0].is_cuda:
            self.update = compiled_update()

    def update_own(self, group: Mapping[str, Any]) -> None:
        """Update the large weights of a group; their moments are made at the first update."""
        factors: dict[float, Tensor] = {}  # of each number of updates, which nearly always is one number
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state.update(new_state(weight))
            state["step"] += 1
            step = float(state["step"])
            if step not in factors:
                factors[step] = torch.tensor(step_factors(group, step), device=weight.device)
            self._update_weight(weight, state, factors[step])

    def _update_weight(self, weight: nn.Parameter, state: Mapping[str, Tensor], factors: Tensor) -> None:
        assert weight.grad is not None
        in_blocks = as_blocks(weight.detach())
        moments = (state["mean"], state["mean_scale"], state["root"], state["root_scale"])
        tensors = (in_blocks, as_blocks(weight.grad), *moments)
        for part in zip(*(tensor.split(AT_ONCE) for tensor in tensors), strict=True):
            self.update(*part, factors, *tables(weight.device))
        if in_blocks.data_ptr() != weight.data_ptr():  # a copy
            weight.copy_(in_blocks.flatten()[: weight.numel()].view(weight.shape))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint, and undo torch's cast of the 8-bit codes to the weights' precision."""
        super().load_state_dict(state_dict)
        for state in self.state.values():  # torch casts what it loads to the weights' precision
            for name in CODES:
                if name in state:
                    state[name] = state[name].to(torch.uint8)


def new_state(weight: Tensor) -> dict[str, Tensor]:
    """Return moments of zero: every scale is."""
    blocks = -(-weight.numel() // BLOCK)
    codes = torch.zeros(blocks, BLOCK, dtype=torch.uint8, device=weight.device)
    scale = torch.zeros(blocks, 1, device=weight.device)
    return {
        "step": torch.zeros(()),
        "mean": codes, "mean_scale": scale, "root": codes.clone(), "root_scale": scale.clone(),
    }  # fmt: skip


def as_blocks(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers as [blocks, 256]: a view if they fill whole blocks in order, else a copy."""
    flat = tensor.reshape(-1)
    missing = -flat.numel() % BLOCK
    return (F.pad(flat, (0, missing)) if missing else flat).view(-1, BLOCK)


def step_factors(group: Mapping[str, Any], step: float) -> list[float]:
    """Return the numbers of update number `step`, in the order in which `update_blocks` takes them."""
    (beta1, beta2), rate = group["betas"], group["lr"]
    return [
        beta1, 1 - beta1, beta2, 1 - beta2, 1 - rate * group["weight_decay"],
        rate / (1 - beta1**step), (1 - beta2**step) ** 0.5, group["eps"],
    ]  # fmt: skip


def update_blocks(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_scale: Tensor,
    root: Tensor,
    root_scale: Tensor,
    factors: Tensor,
    of_mean: Levels,
    of_root: Levels,
) -> None:
    """Update weights and moments in place. All but the last three are [blocks, 256] or [blocks, 1]."""
    beta1, rest1, beta2, rest2, decay, rate, correction, epsilon = factors.unbind()
    first = beta1 * (of_mean[0][mean.int()] * mean_scale) + rest1 * gradient
    second = (beta2 * (of_root[0][root.int()] * root_scale).square() + rest2 * gradient.square()).sqrt()
    weight.copy_(weight * decay - rate * first / (second / correction + epsilon))
    store(first, mean, mean_scale, of_mean)
    store(second, root, root_scale, of_root)


def store(numbers: Tensor, codes: Tensor, scale: Tensor, levels: Levels) -> None:
    """Store each number as the index of the nearest level, as a share of its block's largest number."""
    largest = numbers.abs().amax(1, keepdim=True)
    scale.copy_(largest)
    codes.copy_(torch.bucketize(numbers / largest.clamp(min=TINIEST), levels[1], out_int32=True))


@cache
def compiled_update() -> Callable[..., None]:
    """Return `update_blocks` as one kernel for any number of blocks."""
    compiler_inside.wait_between_reduction_loops()
    compiled: Callable[..., None] = torch.compile(update_blocks, dynamic=True, fullgraph=True)
    return compiled


@cache
def tables(device: torch.device) -> tuple[Levels, Levels]:
    """Return the levels for the first moment, which has a sign, and for the second's root, without one."""
    return levels_on(device, signed=True), levels_on(device, signed=False)


def levels_on(device: torch.device, *, signed: bool) -> Levels:
    """Return the numbers that 8 bits can stand for, on a device, and the middles between neighbours."""
    levels = torch.tensor(list(dynamic_levels(signed=signed)), device=device)
    return levels, (levels[1:] + levels[:-1]) / 2


def dynamic_levels(*, signed: bool) -> Iterator[float]:
    """Yield 256 ascending levels from -1 or 0 to 1: each decade has twice as many as the one below it.

    The dynamic data type of Dettmers et al.: a decade's levels are the middles of equal parts of it.
    """
    magnitudes = [0.0, 1.0]
    for decade in range(DECADES):
        parts = 2**decade if signed else 2 ** (decade + 1)
        top = 10.0 ** (decade + 1 - DECADES)
        magnitudes += [top * (0.1 + 0.9 * (part + 0.5) / parts) for part in range(parts)]
    below = [-magnitude for magnitude in magnitudes if 0 < magnitude < 1] if signed else []
    yield from sorted(below + magnitudes)

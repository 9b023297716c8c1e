"""Mixtures of experts in the recipe's precision, registered with transformers under a name of their own.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@cache
def grouped_experts() -> Literal["bench_grouped"]:
    """Register experts that run as grouped matrix products in bf16. Returns the name of the implementation.

    Autocast does not know grouped products (https://github.com/pytorch/pytorch/issues/174763): with fp32
    weights, transformers multiplies in fp32, in a loop that waits for the device at every product.
    """
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register("bench_grouped", _forward)
    return "bench_grouped"


def _forward(experts: Any, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Send each token to its chosen experts, and add up their results by the router's shares.

    `hidden` [tokens, width]; `chosen` and `shares` [tokens, experts a token]. Returns [tokens, width].
    """
    import torch

    tokens, each = chosen.shape
    expert_of, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(experts.num_experts, device=hidden.device)
    ends = torch.searchsorted(expert_of, numbers, right=True).int()  # where each expert's rows end
    rows = _lowered(hidden)[order // each]
    gated = experts.has_gate
    found = _product(experts, "gate_up_proj" if gated else "up_proj", rows, expert_of, ends)
    found = experts._apply_gate(found) if gated else experts.act_fn(found)
    found = _product(experts, "down_proj", found, expert_of, ends)
    weighted = found * shares.flatten()[order, None].to(found.dtype)
    unsorted = torch.empty_like(weighted).index_copy(0, order, weighted)
    return unsorted.view(tokens, each, -1).sum(1, dtype=torch.float32).to(hidden.dtype)


def _product(experts: Any, name: str, rows: Tensor, expert_of: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row with the matrix of its expert, and add the expert's bias if there is one."""
    from torch.nn.functional import grouped_mm

    weight = _lowered(getattr(experts, name))
    found: Tensor = grouped_mm(
        _lowered(rows).contiguous(), weight if experts.is_transposed else weight.transpose(-2, -1), offs=ends
    )
    return found + getattr(experts, f"{name}_bias")[expert_of] if experts.has_bias else found


def _lowered(tensor: Tensor) -> Tensor:
    """Cast a tensor to the precision in which autocast computes matrix products."""
    import torch

    kind = tensor.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return tensor.to(torch.get_autocast_dtype(kind)) if autocast else tensor

"""Mixtures of experts in the recipe's precision, registered with transformers under a name of their own.

Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@cache
def grouped_experts() -> Literal["bench_grouped"]:
    """Register experts that run as grouped matrix products in half precision. Returns the name.

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
    import torch
    from torch.nn.functional import grouped_mm

    weight = _lowered(getattr(experts, name))
    rows = _lowered(rows).contiguous()
    matrices = weight if experts.is_transposed else weight.transpose(-2, -1)
    if weight.dtype is torch.float16:
        found = grouped_in_fp16()(rows, matrices, ends)
    else:
        found = grouped_mm(rows, matrices, offs=ends)
    return found + getattr(experts, f"{name}_bias")[expert_of] if experts.has_bias else found


def _lowered(tensor: Tensor) -> Tensor:
    """Cast a tensor to the precision in which autocast computes matrix products."""
    import torch

    kind = tensor.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return tensor.to(torch.get_autocast_dtype(kind)) if autocast else tensor


@cache
def grouped_in_fp16() -> Callable[..., Tensor]:
    """Return the operator that multiplies each row with the matrix of its group, one group after the other.

    It takes rows [rows, entries], matrices [groups, entries, results] and where each group's rows end, and
    waits for the device once. PyTorch's own grouped product compiles in bf16 alone, and needs a GPU of
    compute capability 8.0, which the GPUs that train in fp16 for want of bf16 do not have.
    """
    import torch

    operation = partial(torch.library.custom_op, mutates_args=())
    schema = "(Tensor rows, Tensor {}, Tensor ends) -> Tensor"
    forward = operation("bench::grouped_product", _grouped_product, schema=schema.format("matrices"))
    backward = operation(
        "bench::grouped_matrices_gradient", _matrices_gradient, schema=schema.format("gradient")
    )
    forward.register_fake(lambda rows, matrices, _: rows.new_empty(rows.size(0), matrices.size(-1)))
    backward.register_fake(
        lambda rows, gradient, ends: rows.new_empty(ends.size(0), rows.size(-1), gradient.size(-1))
    )

    def save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
        ctx.save_for_backward(*inputs)

    def gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrices, ends = ctx.saved_tensors
        gradient, turned = gradient.contiguous(), matrices.transpose(-2, -1)
        of_rows = of_each = None
        if ctx.needs_input_grad[0]:
            of_rows = forward(gradient, turned, ends)
        if ctx.needs_input_grad[1]:  # in the layout of the matrices, so that nothing copies it
            if turned.is_contiguous():
                of_each = backward(gradient, rows, ends).transpose(-2, -1)
            else:
                of_each = backward(rows, gradient, ends)
        return of_rows, of_each, None

    forward.register_autograd(gradients, setup_context=save)
    registered: Callable[..., Tensor] = torch.ops.bench.grouped_product.default
    return registered


def _grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    import torch

    out = rows.new_zeros(len(rows), matrices.size(-1))
    for group, part in _groups(ends):
        torch.mm(rows[part], matrices[group], out=out[part])
    return out


def _matrices_gradient(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    import torch

    out = rows.new_zeros(len(ends), rows.size(-1), gradient.size(-1))
    for group, part in _groups(ends):
        torch.mm(rows[part].T, gradient[part], out=out[group])
    return out


def _groups(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """Return the number and the rows of each group that has some; the host waits for the device here."""
    for group, (start, end) in enumerate(pairwise((0, *ends.tolist()))):
        if start < end:
            yield group, slice(start, end)

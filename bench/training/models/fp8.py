"""Linear layers that multiply in fp8: the products of recipes with this precision (docs/adr/0032-fp8.md).

Two of a layer's three products multiply numbers of e4m3, where every row of a factor has a scale of its own:
the output, and the gradient of the input. The gradient of the weight multiplies in bf16. No number depends on
another sample of a pass, so the results do not depend on the micro-batch. On a CPU the same numbers are
computed, slowly. Imports torch at module level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.base.errors import BadInput
from bench.training.models.model import LEAST_CAPABILITY
from bench.training.vendor import torch_inside

MULTIPLE = 16  # of both sizes of a weight: what the units for fp8 multiply at once
LARGEST = 448.0  # of e4m3
LEAST = 1e-30  # a row whose numbers are all smaller is scaled as if this were its largest
EXPONENT = 0xFF << 23  # bits of an fp32 number, without sign: its power of two


def multiply_blocks_in_fp8(model: nn.Module, blocks: Sequence[nn.Module], name: str) -> None:
    """Let the plain linear layers of a model's repeated blocks multiply in fp8; others stay in bf16."""
    layers = fp8_layers(model, blocks)
    if not layers:
        reason = f"no linear layer of its blocks has sizes that are multiples of {MULTIPLE}"
        raise BadInput(f"fp8: {reason}", where=name, advice="train it in bf16")
    _require_units(layers[0].weight.device, name)
    for layer in layers:
        layer.product = linear_in_fp8
        if "forward" not in vars(layer):  # a method that replaced it calls `layer.product` (biased_gelu.py)
            layer.forward = _forward_of(layer)


def fp8_layers(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Linear]:
    """Return the layers of the blocks that can multiply in fp8, each once.

    Subclasses of nn.Linear may change the weight before the product. A model without repeated blocks is its
    own only block, and its head must stay in bf16.
    """
    parts = (part for block in blocks if block is not model for part in block.modules())
    fitting = (part for part in parts if type(part) is nn.Linear and _fits(part))
    return list(dict.fromkeys(fitting))


def multiplies_in_fp8(layer: nn.Module) -> bool:
    """Whether this module has converted the layer: its product is `linear_in_fp8`."""
    return getattr(layer, "product", None) is linear_in_fp8


def _fits(layer: nn.Linear) -> bool:
    return not any(length % MULTIPLE for length in layer.weight.shape)


def _forward_of(layer: nn.Linear) -> Any:
    return lambda input: layer.product(input, layer.weight, layer.bias)


def _require_units(device: torch.device, name: str) -> None:
    if device.type != "cuda":
        return
    found, needed = "{}.{}".format(*torch.cuda.get_device_capability(device)), LEAST_CAPABILITY["fp8"]
    if float(found) < needed:
        message = f"fp8 needs compute capability {needed}, this GPU has {found}"
        raise BadInput(message, where=name, advice="give its recipe another precision, such as bf16")


def linear_in_fp8(
    entry: Tensor, weight: Tensor, bias: Tensor | None = None, sums: Tensor | None = None
) -> Tensor:
    """Compute what F.linear computes, in bf16, with products in fp8.

    With `sums`, the gradient of the weight is added to them in the product, and autograd gets none.
    """
    entry, weight = entry.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = _Fp8Product.apply(entry, weight, sums)
    return out if bias is None else out + bias.to(torch.bfloat16)


def rows_in_fp8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in e4m3 as `torch_inside.fp8_product` takes it, and the scale of each of its rows.

    Scales are powers of two. They round nothing, and a largest number that is a little different does not
    change how all others of its row are rounded.
    """
    factor = _factors(_largest(matrix))
    return _cast(matrix, factor).contiguous(), 1 / factor


def side_by_side_in_fp8(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the matrix of parts whose columns lie side by side, as `rows_in_fp8` returns it."""
    largest = _largest(parts[0])
    for part in parts[1:]:
        largest = torch.maximum(largest, _largest(part))
    factor = _factors(largest)
    return torch.cat([_cast(part, factor) for part in parts], dim=-1), 1 / factor


def _largest(matrix: Tensor) -> Tensor:
    return matrix.abs().amax(-1, keepdim=True).float()


def _factors(largest: Tensor) -> Tensor:
    """Return the powers of two that bring the largest number of each row near to the largest of e4m3."""
    exact = LARGEST / largest.clamp(min=LEAST)
    return (exact.view(torch.int32) & EXPONENT).view(torch.float32)


def _cast(matrix: Tensor, factor: Tensor) -> Tensor:
    return (matrix.float() * factor).to(torch.float8_e4m3fn)


class _Fp8Product(torch.autograd.Function):
    """The product of rows with a transposed weight."""

    @staticmethod
    def forward(ctx: Any, entry: Tensor, weight: Tensor, sums: Tensor | None) -> Tensor:
        ctx.save_for_backward(entry, weight, *(() if sums is None else (sums,)))
        return product_in_fp8(entry, weight)

    @staticmethod
    def backward(ctx: Any, changes: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        entry, weight, *sums = ctx.saved_tensors
        if sums:
            return gradient_in_fp8([changes], entry, weight, sums[0]), None, None
        entry_wanted, weight_wanted, _ = ctx.needs_input_grad
        rows = _rows(changes)
        of_entry = product_in_fp8(changes, weight.t()) if entry_wanted else None
        return of_entry, rows.t() @ _rows(entry) if weight_wanted else None, None


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def product_in_fp8(entry: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows by a weight, both rounded to fp8 with a scale for each row."""
    left, right = rows_in_fp8(_rows(entry)), rows_in_fp8(weight)
    return torch_inside.fp8_product(*left, *right).view(*entry.shape[:-1], weight.shape[0])


def gradient_in_fp8(changes: Sequence[Tensor], entry: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
    """Return the gradient of the input, and add the gradient of the weight to `sums`.

    `changes` are the gradients of parts of the output, each of as many rows of the weight, in order.
    """
    rows = [_rows(change) for change in changes]
    left, right = side_by_side_in_fp8(rows), rows_in_fp8(weight.t())
    return _fp8_gradient(rows, *left, *right, _rows(entry), sums).view_as(entry)


# An operator, because it also changes `sums`, undeclared: nothing else in a compiled graph reads them, and
# declaring the change would make the compiler copy them. Casts and scales are outside of it, so that the
# compiler fuses them with the code that makes the gradients.
@torch.library.custom_op("bench::fp8_gradient", mutates_args=())
def _fp8_gradient(
    changes: Sequence[Tensor],
    left: Tensor,
    left_scales: Tensor,
    right: Tensor,
    right_scales: Tensor,
    entry: Tensor,
    sums: Tensor,
) -> Tensor:
    lengths = [change.size(-1) for change in changes]
    for change, total in zip(changes, sums.data.split(lengths), strict=True):
        torch_inside.add_half_product(total, change.t(), entry)
    return torch_inside.fp8_product(left, left_scales, right, right_scales)


@_fp8_gradient.register_fake
def _(
    _changes: Sequence[Tensor],
    left: Tensor,
    _ls: Tensor,
    right: Tensor,
    _rs: Tensor,
    entry: Tensor,
    _s: Tensor,
) -> Tensor:
    return entry.new_empty(left.shape[0], right.shape[0])

"""Count what one pass of a trial multiplies in which precision, from its recorded computations.

Imports torch at module level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from time import process_time

import torch

from bench.base.errors import one_line
from bench.records.products import InputPrecision, ProductKind, Products, why_no_products
from bench.records.trial import Trial
from bench.runner.trial.recorded_computations import GROUPED, Computation, Recording, TensorForm, recorded
from bench.training.models import Flops
from bench.training.setting import Setting, in_group

MOST_SECONDS = 20.0  # of the processor; a loop over positions, for instance, takes longer
MOST_REASON = 200  # letters
NAMES: dict[torch.dtype, InputPrecision] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
FACTORS = {"addmm": slice(1, 3), "baddbmm": slice(1, 3)}  # of the arguments; of other operators the first two


def products_or_reason(trial: Trial, flops: Flops) -> tuple[Products, ...] | str:
    """Count the products of a pass over one sample; return in a line why not if that cannot be done.

    `flops` is the arithmetic that the trial is counted to have.
    """
    try:
        recording = recorded(trial.model, trial.setting, 1, deadline=process_time() + MOST_SECONDS)
        products = counted_products(recording, flops, trial.setting)
    except Exception as error:  # an architecture's code may raise anything; its precisions stay unknown
        return one_line(f"a pass without contents fails: {type(error).__name__}: {error}")[:MOST_REASON]
    return why_no_products(products, flops, trial.model, trial.setting) or products


def counted_products(recording: Recording, flops: Flops, setting: Setting) -> tuple[Products, ...]:
    """Add up the operations of a recorded pass by kind and precision.

    Attention and scans have the operations that the model is counted to have, shared out by what was
    recorded: the recorded shapes show neither windows nor the steps of a scan.
    """
    found = list(_parts(recording, setting))
    if flops.attention and not any(part.kind == "attention" for part in found):
        # Attention that the architecture computes by itself consists of batched products.
        found = [replace(part, kind="attention") if part.batched else part for part in found]
    forward: Counter[tuple[ProductKind, InputPrecision]] = Counter()
    backward: Counter[tuple[ProductKind, InputPrecision]] = Counter()
    for part in found:
        forward[part.kind, part.precision] += part.forward
        backward[part.kind, part.precision] += part.backward
    counted: dict[ProductKind, int] = {"attention": flops.attention, "scans": flops.scan}
    seen = {kind: sum(number for (name, _), number in forward.items() if name == kind) for kind in counted}

    def scaled(kind: ProductKind, number: int) -> int:
        return number * counted[kind] // max(1, seen[kind]) if kind in counted else number

    products = (
        Products(
            kind, precision, scaled(kind, forward[kind, precision]), scaled(kind, backward[kind, precision])
        )
        for kind, precision in sorted(forward.keys() | backward.keys())
    )
    return tuple(part for part in products if part.operations)


@dataclass(frozen=True, slots=True)
class _Part:
    """All runs of one computation in a pass."""

    kind: ProductKind
    precision: InputPrecision
    forward: int  # operations
    backward: int
    batched: bool  # whether it is a batched product


def _parts(recording: Recording, setting: Setting) -> Iterator[_Part]:
    for key, each in recording.computations.items():
        number = recording.counts[key] * operations(each)
        trained = any(form.trained for form in each.forms)
        forward, backward = (0, number) if each.backward else (number, 2 * number * trained)
        batched = _name(each) in ("bmm", "baddbmm")
        kind: ProductKind = "grouped products" if each.function in GROUPED else each.kind
        yield _Part(kind, _precision(each, setting, batched=batched), forward, backward, batched)


def _name(each: Computation) -> str:
    packet = getattr(each.function, "overloadpacket", each.function)
    return str(getattr(packet, "__name__", ""))


def factors(each: Computation) -> tuple[TensorForm, TensorForm]:
    """Return the two tensors that a computation multiplies; of attention, queries and keys."""
    given = each.arguments[FACTORS.get(_name(each), slice(0, 2))]
    left, right = given if len(given) == 2 else each.forms[:2]
    return left, right


def _precision(each: Computation, setting: Setting, *, batched: bool) -> InputPrecision:
    left, right = (form.dtype for form in factors(each))
    # Mamba's convolution and scan take weights in fp32 beside an input in half precision.
    of_input_alone = each.both_ways and each.kind in ("convolutions", "scans")
    name = NAMES[left if of_input_alone else max(left, right, key=lambda dtype: dtype.itemsize)]
    if name != "fp32" or "tf32" not in setting or each.kind == "scans":
        return name
    # PyTorch's fused attention takes no TF32; methods of the group "attention" do, and so do plain products.
    takes_none = each.kind == "attention" and "kernels" in setting and not in_group(setting, "attention")
    return "fp32" if takes_none and not batched else "tf32"


def operations(each: Computation) -> int:
    """Count the operations of a computation from its shapes, without its backward pass.

    Attention is counted as if every position attended to every other one.
    """
    left, right = factors(each)
    if each.kind == "attention":
        value = each.forms[2]
        return 2 * prod(left.shape[:-1]) * right.shape[-2] * (left.shape[-1] + value.shape[-1])
    if each.kind == "scans":
        return prod(left.shape)
    if each.kind == "convolutions":
        return _convolution(each)
    return 2 * prod(left.shape) * right.shape[-1]


def _convolution(each: Computation) -> int:
    name, left, right = _name(each), *factors(each)
    if name == "convolution_backward":  # of the output's gradient, the input and the filters
        filters, transposed, wanted = each.forms[2], each.arguments[7], each.arguments[10]
        places = prod((right if transposed else left).shape[2:])
        products = sum(map(bool, wanted[:2]))
        return 2 * left.shape[0] * places * prod(filters.shape) * products
    if name != "convolution":  # of Mamba's mixer: every channel by itself, as long as its input
        return 2 * prod(left.shape) * right.shape[-1]
    _, _, _, strides, paddings, dilations, transposed, *_ = each.arguments
    sides = left.shape[2:]
    if not transposed:
        options = zip(sides, right.shape[2:], strides, paddings, dilations, strict=True)
        sides = tuple((n + 2 * pad - far * (k - 1) - 1) // step + 1 for n, k, step, pad, far in options)
    return 2 * left.shape[0] * prod(sides) * prod(right.shape)

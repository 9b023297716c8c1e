"""The operations of a pass by kind and precision: products, attention, convolutions and scans. Pure.

The runner records them (bench/runner/trial/counted_products.py), and the verifier holds them to the
operations that the trial was counted to have. docs/adr/0073-precision-of-products.md says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from bench.base.frozen import dataclass
from bench.training.models import Flops, Model
from bench.training.setting import Setting

InputPrecision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]
ProductKind = Literal["products", "grouped products", "attention", "convolutions", "scans"]

# By how much recorded and counted operations may differ, as a share of the counted ones. They are equal for
# every family and for thirty other architectures; a formula may leave out the padding of a convolution.
ROUNDING = 0.02
# The least share of the counted backward pass: a first layer needs no gradient of its input, and a layer
# has as many operations for that as for the gradient of its weight.
LEAST_BACKWARD = 0.45
# The most operations of scans both ways, as a multiple of those counted forwards. A backward pass has twice
# as many, and may compute states again that the forward pass did not keep.
MOST_SCANS = 6
SMALL_SHARE = 0.01  # of the operations of a pass: below it, another precision changes no figure


@dataclass(frozen=True, slots=True)
class Products:
    """The operations of one kind whose factors have one precision, in passes over one sample."""

    kind: ProductKind
    precision: InputPrecision
    forward: int
    backward: int

    @property
    def operations(self) -> int:
        """The operations of a forward and a backward pass over one sample."""
        return self.forward + self.backward


def precisions_of(model: Model, setting: Setting) -> tuple[InputPrecision, ...]:
    """Return the precisions in which a recipe says that products multiply, in this setting."""
    precision = model.recipe.precision
    if precision == "fp8":  # gradients of weights, and all but the linear layers of blocks, are in bf16
        return "fp8", "bf16"
    return (precision, "tf32") if precision == "fp32" and "tf32" in setting else (precision,)


def shares_of(products: Iterable[Products]) -> dict[tuple[ProductKind, InputPrecision], float]:
    """Return the share of each kind and precision in all operations of a pass, the largest first."""
    ordered = sorted(products, key=lambda part: -part.operations)
    total = sum(part.operations for part in ordered)
    return {(part.kind, part.precision): part.operations / total for part in ordered}


def in_other_precisions(
    products: Sequence[Products], model: Model, setting: Setting
) -> dict[tuple[ProductKind, InputPrecision], float]:
    """Return the shares that multiply in other precisions than the recipe's; {} if below SMALL_SHARE in all.

    Scans are left out: no unit for products computes them, and their precision is their authors' choice.
    """
    expected = precisions_of(model, setting)
    shares = shares_of(products)
    found = {key: shares[key] for key in shares if key[0] != "scans" and key[1] not in expected}
    return found if sum(found.values()) >= SMALL_SHARE else {}


def why_no_products(products: Sequence[Products], flops: Flops, model: Model, setting: Setting) -> str | None:
    """Return why a pass cannot have these products; None if it can. Runner and verifier both ask."""
    if any(part.forward < 0 or part.backward < 0 or part.operations == 0 for part in products):
        return "a kind of its products has no operations"
    if len({(part.kind, part.precision) for part in products}) < len(products):
        return "a kind of its products is listed twice in one precision"
    allowed = {*precisions_of(model, setting), *({"tf32"} & {*setting})}  # what a half recipe leaves in fp32
    for part in products:
        if part.precision in ("fp8", "tf32") and part.precision not in allowed:
            return f"it has {part.kind} in {part.precision}, which its recipe and setting do not use"
    # Without a bound, scans that no model has would make the share of another precision look small.
    if (scans := sum(part.operations for part in products if part.kind == "scans")) > MOST_SCANS * flops.scan:
        return (
            f"its scans have {scans:,} operations, and the model is counted to have {flops.scan:,} forwards"
        )
    forward = sum(part.forward for part in products if part.kind != "scans")
    backward = sum(part.backward for part in products if part.kind != "scans")
    counted = flops.total - flops.scan
    # A scan without a kernel is computed by operations that are partly products.
    most = (1 + ROUNDING) * counted + flops.scan / 2
    if not (1 - ROUNDING) * counted <= forward <= most:
        return (
            f"its products have {forward:,} operations forwards, and the model is counted to have {counted:,}"
        )
    if flops.backward is None and not LEAST_BACKWARD * 2 * counted <= backward <= 2 * most:
        return f"its products have {backward:,} operations backwards, and {forward:,} forwards"
    if flops.backward is not None and backward > (1 + ROUNDING) * flops.backward:
        return f"its products have {backward:,} operations backwards, of {flops.backward:,} counted"
    return None

"""Formulas for torch's counter that also tally the shapes of products and of convolutions.

The tally of a pass adds up, so that blocks of one kind run once and are repeated (repeated_blocks.py). Shapes
are therefore kept as sums: for products of the same inner size and the same columns, their rows and their
number. Pure; torch's counter is made in bench/training/vendor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bench.training.models.model import ConvolutionShape, ProductShape
from bench.training.vendor import torch_inside


class ProductKey(NamedTuple):
    """A sum over the products of one inner size and one number of columns."""

    what: Literal["rows", "number"]
    inner: int
    columns: int


class ConvolutionKey(NamedTuple):
    """The operations of the dense convolutions whose filters have this form."""

    channels: int
    filters: int
    weights: int


class ShapeCount:
    """Formulas for torch's counter. Depthwise convolutions are added up apart from dense ones."""

    def __init__(self) -> None:
        self.elements = self.operations = 0  # of depthwise convolutions
        self.tally: Counter[Hashable] = Counter()

    def flop_counter(self) -> Any:
        """Return torch's counter with the formulas of this tally."""
        return torch_inside.flop_counter(
            product=self._product,
            product_with_sum=lambda _sum, left, right, *_, **__: self._product(left, right),
            grouped_matmul=self._grouped,
            batched_matmul=batched_matmul,
            convolution=self._convolution,
        )

    def _product(self, left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
        return self._add(rows=left[0], inner=left[1], columns=right[1], number=1)

    def _grouped(self, rows: Sequence[int], experts: Sequence[int], *_: Any, **__: Any) -> int:
        """Count a grouped product, in which each row meets the matrix of one expert."""
        return self._add(rows=rows[0], inner=rows[1], columns=experts[-1], number=experts[0])

    def _add(self, rows: int, inner: int, columns: int, number: int) -> int:
        self.tally[ProductKey("rows", inner, columns)] += rows
        self.tally[ProductKey("number", inner, columns)] += number
        return 2 * rows * inner * columns

    def _convolution(
        self,
        images: Sequence[int],
        filters: Sequence[int],
        _bias: Any,
        _stride: Any,
        _padding: Any,
        _dilation: Any,
        transposed: bool,
        _output_padding: Any,
        groups: int,
        *_: Any,
        out_shape: Sequence[int],
        **__: Any,
    ) -> int:
        places = math.prod((images if transposed else out_shape)[2:])
        flops = 2 * images[0] * places * math.prod(filters)
        if groups == images[1] > 1:
            self.elements += math.prod(out_shape)
            self.operations += flops
        else:
            into = filters[1] * groups if transposed else filters[0]
            self.tally[ConvolutionKey(images[1] // groups, into // groups, math.prod(filters[2:]))] += flops
        return flops


def batched_matmul(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the operations of a batched product; 0 for an outer product, say of positions and frequencies.

    An outer product sums nothing, so it is elementwise. Most batched products are attention; their shapes are
    not kept.
    """
    batches, rows, inner = left
    return 0 if inner == 1 else 2 * batches * rows * inner * right[-1]


def counted_products(tally: Mapping[Hashable, int]) -> tuple[ProductShape, ...]:
    """Return the shapes of the products that a tally has, the largest inner size first."""
    keys = [key for key in tally if isinstance(key, ProductKey) and key.what == "number" and tally[key]]
    return tuple(
        ProductShape(key.inner, key.columns, tally[key._replace(what="rows")], tally[key])
        for key in sorted(keys, reverse=True)
    )


def counted_convolutions(tally: Mapping[Hashable, int]) -> tuple[ConvolutionShape, ...]:
    """Return the operations of dense convolutions by the form of their filters."""
    keys = [key for key in tally if isinstance(key, ConvolutionKey) and tally[key]]
    return tuple(ConvolutionShape(*key, tally[key]) for key in sorted(keys))

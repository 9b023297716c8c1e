"""The time that products of matrices take beside their operations, by their shapes. Pure.

A product reads both factors and writes its result. Where a side is small, as in the first stages of Swin,
moving these numbers takes longer than multiplying them. Each product also takes a time that no size changes:
its kernel starts, fills its pipelines, and ends with multiprocessors that have nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from bench.training.models.model import ProductShape

# Seconds that each product takes beside its operations or bytes. An H200 takes them for 2,048 rows of 1,024
# numbers by a matrix of 1,024 x 4,096 beside a sixteenth of the time for 32,768 rows: 3.1 to 4.3 microseconds
# in three precisions (docs/evidence/operations-h200).
PRODUCT_SECONDS = 3.5e-6
BOTH_WAYS = 3  # a product forwards, and two backwards: the gradients of its input and of its weights


@lru_cache(maxsize=4096)  # settings of a model have the same products
def slowed_by_memory(
    shapes: tuple[ProductShape, ...],
    samples: int,
    element_bytes: int,
    operations_per_second: float,
    bytes_per_second: float,
) -> float:
    """Return the factor by which memory makes the products of `samples` samples slower, at least 1."""
    ideal = taken = 0.0
    for shape in shapes:
        for rows, columns, inner in _both_ways(shape, samples):
            operations = 2 * rows * columns * inner / operations_per_second
            moved = element_bytes * (rows * inner + inner * columns + rows * columns) / bytes_per_second
            ideal += shape.number * operations
            taken += shape.number * max(operations, moved)
    return taken / ideal if ideal else 1.0


def fixed_seconds(shapes: Sequence[ProductShape]) -> float:
    """Return the time of a forward and a backward pass that does not depend on the sizes of products."""
    return BOTH_WAYS * PRODUCT_SECONDS * sum(shape.number for shape in shapes)


def _both_ways(shape: ProductShape, samples: int) -> Iterator[tuple[float, float, float]]:
    """Yield the rows, the columns and the inner size of the mean product, forwards and backwards."""
    rows = samples * shape.rows / shape.number
    yield rows, shape.columns, shape.inner
    yield rows, shape.inner, shape.columns
    yield shape.inner, shape.columns, rows

"""Shapes of products and convolutions are counted with the operations, and add up like them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.base.strict_json import to_json
from bench.training.models.model import ConvolutionShape, OperationShapes, ProductShape, product_shapes
from bench.training.models.operation_shapes import ShapeCount, counted_convolutions, counted_products
from bench.training.models.shipped_counts import shipped_counts
from bench.training.models.zoo import zoo_model


def test_linear_layers_are_products_with_the_rows_of_all_positions() -> None:
    count = ShapeCount()
    with torch.no_grad(), count.flop_counter() as counter:
        for layer in (nn.Linear(8, 16), nn.Linear(8, 16, bias=False), nn.Linear(16, 8)):
            layer(torch.ones(2, 3, layer.in_features))
    assert counted_products(count.tally) == (ProductShape(16, 8, 6, 1), ProductShape(8, 16, 12, 2))
    assert counter.get_total_flops() == 3 * 2 * 6 * 8 * 16


def test_a_grouped_product_is_one_product_for_each_expert() -> None:
    count = ShapeCount()
    with torch.no_grad(), count.flop_counter() as counter:
        ends = torch.tensor([4, 8, 12], dtype=torch.int32)
        rows, experts = (torch.ones(*size, dtype=torch.bfloat16) for size in ((12, 16), (3, 16, 32)))
        functional.grouped_mm(rows, experts, offs=ends)
    assert counted_products(count.tally) == (ProductShape(16, 32, 12, 3),)
    assert counter.get_total_flops() == 2 * 12 * 16 * 32


def test_dense_convolutions_are_told_by_their_filters_and_depthwise_ones_are_counted_apart() -> None:
    count = ShapeCount()
    with torch.no_grad(), count.flop_counter():
        nn.Conv1d(1, 8, 10, stride=5)(torch.ones(1, 1, 20))
        nn.Conv2d(8, 16, 3, groups=2)(torch.ones(1, 8, 4, 4))
        nn.ConvTranspose2d(8, 6, 2, groups=2, stride=2)(torch.ones(1, 8, 2, 2))
        nn.Conv1d(4, 4, 3, groups=4)(torch.ones(1, 4, 5))
    assert counted_convolutions(count.tally) == (
        ConvolutionShape(channels=1, filters=8, weights=10, operations=2 * 3 * 8 * 10),
        ConvolutionShape(channels=4, filters=3, weights=4, operations=2 * 4 * 8 * 3 * 4),
        ConvolutionShape(channels=4, filters=8, weights=9, operations=2 * 4 * 4 * 16 * 9),
    )
    assert (count.elements, count.operations) == (12, 2 * 3 * 12)


def test_products_of_one_inner_size_and_width_are_one_shape() -> None:
    assert product_shapes([(8, 16, 3), (16, 8, 3), (8, 16, 5)]) == (
        ProductShape(16, 8, 3, 1),
        ProductShape(8, 16, 8, 2),
    )


def test_counts_without_shapes_keep_their_json() -> None:
    """Bundles and their digests stay as they are."""
    described = to_json(OperationShapes(query_elements=8))
    assert not {"products", "convolutions", "biased_blocks"} & {*described}


@pytest.mark.parametrize("name", ["gpt2", "t5-v1.1-base", "wav2vec2-base", "swin-tiny", "olmoe-1b-7b"])
def test_shipped_shapes_have_the_operations_that_are_shipped(name: str) -> None:
    found = zoo_model(name)
    assert found is not None
    counts = shipped_counts(found.model)
    assert counts is not None
    shapes = counts.shapes
    operations = sum(2 * shape.inner * shape.columns * shape.rows for shape in shapes.products)
    assert operations == pytest.approx(counts.flops.matmul, rel=1e-3)
    convolved = sum(shape.operations for shape in shapes.convolutions) + shapes.depthwise_operations
    assert convolved == counts.flops.convolution

"""The limits of a machine hold for everything that training multiplies."""

from __future__ import annotations

import torch

from bench.runner.trial.ceilings import products


def test_products_of_the_limit_have_every_memory_layout_of_training() -> None:
    """Without units for half precision, a CPU multiplies 12 times as fast in one layout as in another."""
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    calls = list(products(a, b))
    strides = {tuple(factor.stride() for factor in call.args) for call in calls}
    assert strides == {((4, 1), (1, 4)), ((4, 1), (5, 1)), ((1, 3), (5, 1))}
    for call in calls:
        torch.testing.assert_close(call(), a @ b)

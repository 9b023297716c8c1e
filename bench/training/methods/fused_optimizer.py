"""A fused optimizer: one kernel updates weights and both moments, where the default makes many passes.

The strategy that creates the optimizer reads the name (bench/runner/trial/strategies.py).
"""

from __future__ import annotations

from bench.training.methods.method import Method

METHODS = (
    Method(
        name="fused-optimizer",
        summary="Adam's update in one kernel",
        free_lunch=True,
        chooses_kernels=False,
        configured_by=("trainer",),
    ),
)

"""A fused optimizer: one kernel updates weights and both moments, where the default makes many passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.training.methods import Method


@dataclass(frozen=True, slots=True)
class FusedOptimizer(Method):
    """The strategy, which makes the optimizer, looks for this name (bench.runner.trial.training_loop)."""

    name: str = "fused-optimizer"
    summary: str = "Adam's update in one kernel"
    free_lunch: ClassVar[bool] = True


METHODS = (FusedOptimizer(),)

"""FSDP2 (`fully_shard`): PyTorch's own sharding, per parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.training.methods import Method


@dataclass(frozen=True, slots=True)
class Fsdp(Method):
    group: ClassVar[str | None] = "sharding"


METHODS = (
    Fsdp("fsdp-2", "gradients and optimizer states divided among the GPUs"),
    Fsdp("fsdp-3", "gradients, optimizer states and parameters divided among the GPUs"),
)

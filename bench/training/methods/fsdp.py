"""FSDP2 (`fully_shard`): PyTorch's own sharding, per parameter."""

from __future__ import annotations

from bench.training.methods import Method

METHODS = (
    Method("fsdp-2", "gradients and optimizer states divided among the GPUs"),
    Method("fsdp-3", "gradients, optimizer states and parameters divided among the GPUs"),
)

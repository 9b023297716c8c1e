"""FSDP2 (`fully_shard`): PyTorch's own sharding, per parameter."""

from __future__ import annotations

from bench.training.methods.method import Method


def _sharding(name: str, summary: str, *, prior_time: float) -> Method:
    return Method(
        name,
        summary,
        prior_time=prior_time,
        chooses_kernels=False,
        changes_activations=False,
        configured_by=("trainer",),
    )


METHODS = (
    _sharding("fsdp-2", "gradients and optimizer states divided among the GPUs", prior_time=1.05),
    _sharding("fsdp-3", "gradients, optimizer states and parameters divided among the GPUs", prior_time=1.15),
)

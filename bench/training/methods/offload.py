"""Offloading: sharded tensors live in the host's memory and are copied to the GPU when needed."""

from __future__ import annotations

from bench.training.methods.method import Method

METHODS = (
    Method(
        name="offload",
        summary="gradients and optimizer states in the host's memory; with zero-3 and FSDP2 parameters too",
        requires={"sharding": "offload needs a sharding method beside it"},
        prior_time=1.6,
        chooses_kernels=False,
        changes_activations=False,
        configured_by=("trainer",),
    ),
)

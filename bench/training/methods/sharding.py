"""Sharding with DeepSpeed's ZeRO or PyTorch's FSDP2 (`fully_shard`), and offloading what is sharded.

bench/runner/trial/strategies.py reads these methods' names. Offloaded tensors live in the host's memory
and are copied to the GPU when needed.
"""

from __future__ import annotations

from typing import Any

from bench.base.distribution import pip_install
from bench.training.methods.method import Method, Target
from bench.training.models import Model

_COMMON: dict[str, Any] = {
    "chooses_kernels": False,
    "changes_activations": False,
    "configured_by": ("trainer",),
}


def _refuse_zero(_model: Model, target: Target) -> str | None:
    if not target.has("deepspeed"):
        return f"deepspeed is not installed: {pip_install('zero')}"
    return None


METHODS = (
    *(
        Method(name, f"{what} divided among the GPUs", prior_time=time, refuse=_refuse_zero, **_COMMON)
        for name, what, time in (
            ("zero-1", "optimizer states", 1.1),
            ("zero-2", "optimizer states and gradients", 1.12),
            ("zero-3", "optimizer states, gradients and parameters", 1.6),
        )
    ),
    *(
        Method(name, f"{what} divided among the GPUs", prior_time=time, **_COMMON)
        for name, what, time in (
            ("fsdp-2", "gradients and optimizer states", 1.05),
            ("fsdp-3", "gradients, optimizer states and parameters", 1.15),
        )
    ),
    Method(
        name="offload",
        summary="gradients and optimizer states in the host's memory; with zero-3 and FSDP2 parameters too",
        requires={"sharding": "offload needs a sharding method beside it"},
        not_exported_to={
            "standalone": "offload is tuned by bench: without it gradients wait for the host in each pass"
        },
        prior_time=1.6,
        **_COMMON,
    ),
)

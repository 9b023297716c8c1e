"""ZeRO (DeepSpeed): optimizer states, then gradients, then parameters divided among the GPUs."""

from __future__ import annotations

from bench.training.methods.method import Method, Target
from bench.training.models import Model


def _refuse(_model: Model, target: Target) -> str | None:
    if not target.has("deepspeed"):
        return "deepspeed is not installed: pip install 'bench[zero]'"
    return None


def _sharding(name: str, summary: str, *, prior_time: float) -> Method:
    return Method(
        name,
        summary,
        prior_time=prior_time,
        chooses_kernels=False,
        changes_activations=False,
        configured_by=("trainer",),
        refuse=_refuse,
    )


METHODS = (
    _sharding("zero-1", "optimizer states divided among the GPUs", prior_time=1.1),
    _sharding("zero-2", "optimizer states and gradients divided among the GPUs", prior_time=1.12),
    _sharding("zero-3", "optimizer states, gradients and parameters divided among the GPUs", prior_time=1.6),
)

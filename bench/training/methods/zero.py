"""ZeRO (DeepSpeed): optimizer states, then gradients, then parameters divided among the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from bench.training.methods import Method, Target
from bench.training.models import Model


@dataclass(frozen=True, slots=True)
class ZeroMethod(Method):
    def refuse(self, model: Model, target: Target) -> str | None:
        if not target.has("deepspeed"):
            return "deepspeed is not installed: pip install 'bench[zero]'"
        return None


METHODS = (
    ZeroMethod("zero-1", "optimizer states divided among the GPUs"),
    ZeroMethod("zero-2", "optimizer states and gradients divided among the GPUs"),
    ZeroMethod("zero-3", "optimizer states, gradients and parameters divided among the GPUs"),
)

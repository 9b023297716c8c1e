"""ZeRO (DeepSpeed): optimizer states, then gradients, then parameters divided among the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from bench.training.methods import Method, Target
from bench.training.models import Model


@dataclass(frozen=True, slots=True)
class Zero(Method):
    def refuse(self, model: Model, target: Target) -> str | None:
        if not target.has("deepspeed"):
            return "deepspeed is not installed: pip install 'bench[zero]'"
        return None


METHODS = (
    Zero("zero-1", "optimizer states divided among the GPUs"),
    Zero("zero-2", "optimizer states and gradients divided among the GPUs"),
    Zero("zero-3", "optimizer states, gradients and parameters divided among the GPUs"),
)

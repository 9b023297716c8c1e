"""Offloading: what is sharded lives in the host's memory and visits the GPU when needed."""

from __future__ import annotations

from dataclasses import dataclass

from bench.methods import Method, Target
from bench.models import Model


@dataclass(frozen=True, slots=True)
class Offload(Method):
    name: str = "offload"
    summary: str = "optimizer states (stage 3: parameters too) in the host's memory"

    def refuse(self, model: Model, target: Target) -> str | None:
        return "offload is planned but not run yet by this version"


METHODS = (Offload(),)

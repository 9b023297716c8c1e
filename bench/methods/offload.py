"""Offloading: what is sharded lives in the host's memory and visits the GPU when needed."""

from __future__ import annotations

from dataclasses import dataclass

from bench.methods import Method, Target
from bench.models import Model
from bench.models.inline import parameters_of

# fp32 weights, gradients and two moments. DeepSpeed's stage 3 and FSDP2 keep half-precision copies besides.
HOST_BYTES_A_PARAMETER = 16


@dataclass(frozen=True, slots=True)
class Offload(Method):
    name: str = "offload"
    summary: str = "gradients and optimizer states in the host's memory; with zero-3 and FSDP2 parameters too"

    def refuse(self, model: Model, target: Target) -> str | None:
        # Of a model that is counted when it runs, nobody can tell here.
        needed = HOST_BYTES_A_PARAMETER * (parameters_of(model) or 0)
        if target.host_bytes is not None and needed > target.host_bytes:
            there = f"{target.host_bytes / 2**30:.0f} GiB"
            return f"offloading needs about {needed / 2**30:.0f} GiB of the host's memory; there are {there}"
        return None


METHODS = (Offload(),)

"""Offloading: what is sharded lives in the host's memory and visits the GPU when needed."""

from __future__ import annotations

from dataclasses import dataclass

from bench.training.methods import Method


@dataclass(frozen=True, slots=True)
class Offload(Method):
    name: str = "offload"
    summary: str = "gradients and optimizer states in the host's memory; with zero-3 and FSDP2 parameters too"


METHODS = (Offload(),)

"""Environment variables that torch, and what is below it, obey: two runs that differ in one may differ.

Kept in the bundle, since neither a manifest nor an image tells them. What only says where something lies,
or who is where, is left out: it changes no figure, and may hold a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench.base.names import VISIBLE

_OBEYED = (
    "TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_TF32", "NCCL_", "GLOO_", "OMP_",
    "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "DS_", "MALLOC_", "LD_PRELOAD",
)  # fmt: skip
_PLACE = re.compile(r"TORCHELASTIC_.*|.*_(DIR|DIRECTORY|HOME|PATH|ROOT|DEBUG_FILE|HOSTID|COMM_ID|LOGS?)")
# Other arithmetic, other compiled code, other memory. How a node is wired and threaded is its own business.
_DECIDING = (
    "TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TORCH_ALLOW_TF32", "TORCH_BLAS", "PYTORCH_",
    "TRITON_", "CUDA_LAUNCH", "CUBLAS", "CUDNN_", "NVIDIA_TF32",
)  # fmt: skip
_LONGEST = 200
NOT_SET = "not set"
Switches = Mapping[str, str]


def kept(environment: Mapping[str, str]) -> Switches:
    """What a bundle keeps of it."""
    return {
        name: _told(value)
        for name, value in sorted(environment.items())
        if name.startswith(_OBEYED) and not _PLACE.fullmatch(name) and name != VISIBLE
    }


def _told(value: str) -> str:
    """Of a path its last part; nothing that a terminal would obey."""
    told = re.sub(r"[^\s:=,]*/", "", value)[:_LONGEST]
    return "".join(character if character.isprintable() else "?" for character in told)


def deciding(switches: Switches) -> Switches:
    """Those without which the same model on the same machine is something else."""
    return {name: value for name, value in switches.items() if name.startswith(_DECIDING)}


def others(switches: Switches) -> Switches:
    return {name: value for name, value in switches.items() if not name.startswith(_DECIDING)}


def in_words(switches: Switches) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(switches.items()))

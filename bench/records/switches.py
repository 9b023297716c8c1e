"""The environment variables that change what torch and its libraries do, as a bundle records them. Pure.

Neither the manifest nor the image states them. Variables that hold only a path, a host or an identity are
left out: they change no figure, and may hold a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bench.base.names import VISIBLE

_RECORDED = re.compile(
    "TORCH|PYTORCH_|TRITON_|CUDA_|CUBLAS|CUDNN_|NVIDIA_TF32|NCCL_|GLOO_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|DS_|"
    "MALLOC_|LD_PRELOAD"
)
_PLACE = re.compile(r"TORCHELASTIC_.*|.*_(DIR|DIRECTORY|HOME|PATH|ROOT|DEBUG_FILE|HOSTID|COMM_ID|LOGS?)")
# Variables that change arithmetic, compiled code or memory. The others say how this node is wired and
# threaded, which may differ between nodes that are compared.
_DECIDING = re.compile(
    "TORCHINDUCTOR_|TORCHDYNAMO_|TORCH_COMPILE|TORCH_ALLOW_TF32|TORCH_BLAS|PYTORCH_|TRITON_|CUDA_LAUNCH|CUBLAS|"
    "CUDNN_|NVIDIA_TF32"
)
_MAX_CHARACTERS = 200
NOT_SET = "not set"
Switches = Mapping[str, str]


def kept(environment: Mapping[str, str]) -> Switches:
    """Select the variables of an environment that a bundle records."""
    return {
        name: _recorded_value(value)
        for name, value in sorted(environment.items())
        if _RECORDED.match(name) and not _PLACE.fullmatch(name) and name != VISIBLE
    }


def _recorded_value(value: str) -> str:
    """Shorten a value: cut paths to their last part and replace control characters."""
    short = re.sub(r"[^\s:=,]*/", "", value)[:_MAX_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in short)


def deciding(switches: Switches) -> Switches:
    """Select the switches that must be equal before two runs can be compared."""
    return {name: value for name, value in switches.items() if _DECIDING.match(name)}


def others(switches: Switches) -> Switches:
    """Select the switches that may differ between runs that are compared."""
    return {name: value for name, value in switches.items() if not _DECIDING.match(name)}


def in_words(switches: Switches) -> str:
    """Format switches for a message: NAME=VALUE, NAME=VALUE."""
    return ", ".join(f"{name}={value}" for name, value in sorted(switches.items()))


def differences(
    here: Mapping[str, str], there: Mapping[str, str], absent: str, names: tuple[str, str] = ("here", "there")
) -> Iterator[str]:
    """Yield a text for each switch, or package, whose value differs, or that only one of two machines has."""
    for name in sorted({*here, *there}):
        ours, theirs = here.get(name, absent), there.get(name, absent)
        if ours != theirs:
            yield f"{name} {ours} {names[0]}, {theirs} {names[1]}"

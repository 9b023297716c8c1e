"""Which GPUs a run has, by NVML and CUDA_VISIBLE_DEVICES: those that CUDA shows it, in CUDA's order.

CUDA is made to count as NVML does (start_forkserver.py sets CUDA_DEVICE_ORDER). By default CUDA puts the
fastest GPU first, and where cards differ an index would be of another card here and there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.base.names import VISIBLE
from bench.node_check.judging.evidence import Answers
from bench.records.trial import Gpu

_ON_CPU = "--device cpu measures the CPU"


def gpus_here(host_bytes: int) -> tuple[tuple[Gpu, ...], str | None]:
    """With the driver's version. No NVML means no NVIDIA driver: a CPU machine."""
    try:
        import pynvml
    except ImportError:
        return (), None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        everything, silent = _everything(pynvml, host_bytes)
        chosen = visible(everything)
        _require_named(everything, chosen)
        for gpu in chosen:
            if gpu.index in silent:
                raise EnvironmentCannot(
                    f"GPU {gpu.index} does not answer: {silent[gpu.index]}",
                    advice=f"bench check looks closer; {VISIBLE} leaves it out",
                )
            _require_whole(pynvml, gpu)
        return chosen, pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """CUDA_VISIBLE_DEVICES as CUDA reads it: indices or UUID prefixes, up to the first bad one."""
    names = _names()
    if names is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in names:
        if (gpu := _named(name, gpus)) is None:
            break
        chosen.append(gpu)
    # Of a list that names one twice CUDA shows nothing.
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


def not_here(gpus: Sequence[Gpu]) -> list[str]:
    """Names in CUDA_VISIBLE_DEVICES that are none of these, or of several: CUDA drops them in silence."""
    names = _names() or []
    shown = names[: names.index("-1")] if "-1" in names else names
    return [name for name in shown if _named(name, gpus) is None]


def _names() -> list[str] | None:
    wanted = os.environ.get(VISIBLE)
    return None if wanted is None else [name for part in wanted.split(",") if (name := part.strip())]


def _named(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    match = [gpu for gpu in gpus if str(gpu.index) == name or gpu.uuid.startswith(name)]
    return match[0] if len(match) == 1 else None


def _require_named(gpus: Sequence[Gpu], chosen: Sequence[Gpu]) -> None:
    """CUDA drops in silence what it does not find: the rest, or the CPU, would be measured in its place."""
    names = _names() or []
    if "-1" in names:  # what comes after it is hidden on purpose
        names = names[: names.index("-1")]
    if not gpus or len(names) == len(chosen) or not names:
        return
    wrong = next((name for name in names if _named(name, gpus) is None), None)
    if wrong is None:
        raise EnvironmentCannot(
            f"{VISIBLE}={os.environ[VISIBLE]} names a GPU twice: CUDA shows none then",
            advice="name each once",
        )
    if wrong.startswith("MIG"):
        raise EnvironmentCannot(
            f"{VISIBLE} names {wrong}, a part of a GPU: whole GPUs are measured", advice=_ON_CPU
        )
    known = ", ".join(f"{gpu.index} ({gpu.name or 'no answer'})" for gpu in gpus)
    raise EnvironmentCannot(
        f"{VISIBLE}={os.environ[VISIBLE]}: {wrong} is none of the GPUs here, or of several",
        advice=f"here are {known}; {_ON_CPU}",
    )


def seen(answers: Answers) -> Gpu:
    """By what NVML said of it. One that is lost stays in the list, without memory: nothing is run on it."""
    memory, capability = answers.get("MemoryInfo") or {}, answers.get("CudaComputeCapability") or (0, 0)
    return Gpu(
        answers.index,
        str(answers.get("Name") or "lost"),
        str(answers.get("UUID") or f"lost-{answers.index}"),
        int(memory.get("total", 0)),
        f"{capability[0]}.{capability[1]}",
    )


def in_parts(gpus: Sequence[Answers]) -> str | None:
    """What CUDA would show of one that is divided has neither its memory nor its arithmetic."""
    divided = next((gpu for gpu in gpus if (gpu.get("MigMode") or (0,))[0]), None)
    return f"{divided.where} is divided into parts (MIG): {_undivided(divided.index)}" if divided else None


def _undivided(index: int) -> str:
    return f"nvidia-smi -i {index} -mig 0 (root), or leave it out by {VISIBLE}"


def _require_whole(nvml: Any, gpu: Gpu) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    try:
        divided = nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError:  # a card that cannot be divided
        return
    if divided:
        raise EnvironmentCannot(
            f"GPU {gpu.index}, {gpu.name}, is divided into parts (MIG): whole GPUs are measured",
            advice=_undivided(gpu.index),
        )


def _everything(nvml: Any, host_bytes: int) -> tuple[list[Gpu], dict[int, str]]:
    """All that this process may use, and why one of them does not answer."""
    gpus, silent = [], {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(nvml, index, host_bytes))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:  # a scheduler gave it to somebody else
                continue
            gpus.append(Gpu(index, "", "", 0, ""))
            silent[index] = str(error)
    return gpus, silent


def _gpu(nvml: Any, index: int, host_bytes: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=_memory(nvml, handle, host_bytes),
        compute_capability=f"{major}.{minor}",
    )


def _memory(nvml: Any, handle: Any, host_bytes: int) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:  # it has none of its own, and uses the host's
            return host_bytes
        raise

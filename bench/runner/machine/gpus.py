"""List the GPUs that CUDA shows to a run, in CUDA's order, from NVML and CUDA_VISIBLE_DEVICES.

The supervisor makes CUDA number GPUs as NVML does (CUDA_DEVICE_ORDER). By default CUDA puts the
fastest GPU first, so that on a machine with different cards its numbers and NVML's would differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.base.names import VISIBLE
from bench.node_check.judging.evidence import Answers
from bench.records.trial import Gpu
from bench.runner.machine.kernel_gpus import pci_address

_ON_CPU = "--device cpu measures the CPU"


def gpus_here(host_bytes: int) -> tuple[tuple[Gpu, ...], str | None]:
    """Return the visible GPUs and the driver's version; ((), None) on a machine without an NVIDIA driver.

    EnvironmentCannot if a visible GPU does not answer or is divided (MIG), or if CUDA_VISIBLE_DEVICES names
    a GPU that CUDA would silently drop. `host_bytes`: the host's memory, for a GPU that shares it.
    """
    try:
        import pynvml
    except ImportError:
        return (), None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        everything, silent = _list_gpus(pynvml, host_bytes)
        chosen = visible(everything)
        _require_named(everything, chosen)
        for gpu in chosen:
            if gpu.index in silent:
                raise EnvironmentCannot(
                    f"GPU {gpu.index} does not answer: {silent[gpu.index]}",
                    advice=f"bench check examines it; {VISIBLE} can leave it out",
                )
            _require_whole(pynvml, gpu)
        return chosen, pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return all GPUs, or those that CUDA_VISIBLE_DEVICES gives by index or UUID prefix up to a wrong one."""
    names = _names()
    if names is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in names:
        if (gpu := _named(name, gpus)) is None:
            break
        chosen.append(gpu)
    # CUDA shows no GPU at all if the list names one twice.
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


def unmatched_names(gpus: Sequence[Gpu]) -> list[str]:
    """Return names in CUDA_VISIBLE_DEVICES that match no GPU, or several; CUDA silently drops them."""
    return [name for name in _shown_names() if _named(name, gpus) is None]


def _names() -> list[str] | None:
    value = os.environ.get(VISIBLE)
    return None if value is None else [name for part in value.split(",") if (name := part.strip())]


def _shown_names() -> list[str]:
    """Return the names in CUDA_VISIBLE_DEVICES before "-1"; GPUs named after "-1" are hidden on purpose."""
    return list(takewhile(lambda name: name != "-1", _names() or []))


def _named(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    matches = [gpu for gpu in gpus if str(gpu.index) == name or gpu.uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _require_named(gpus: Sequence[Gpu], chosen: Sequence[Gpu]) -> None:
    """Refuse a name of a GPU that CUDA would silently drop: other GPUs, or the CPU, would be measured."""
    names = _shown_names()
    if not gpus or len(names) == len(chosen) or not names:
        return
    wrong = next(iter(unmatched_names(gpus)), None)
    if wrong is None:
        raise EnvironmentCannot(
            f"{VISIBLE}={os.environ[VISIBLE]} names a GPU twice: CUDA then shows none",
            advice="name each GPU once",
        )
    if wrong.startswith("MIG"):
        raise EnvironmentCannot(
            f"{VISIBLE} names {wrong}, a part of a GPU: bench measures whole GPUs", advice=_ON_CPU
        )
    present = ", ".join(f"{gpu.index} ({gpu.name or 'no answer'})" for gpu in gpus)
    raise EnvironmentCannot(
        f"{VISIBLE}={os.environ[VISIBLE]}: {wrong} matches no GPU of this machine, or several",
        advice=f"this machine has {present}; {_ON_CPU}",
    )


def gpu_from_answers(answers: Answers) -> Gpu:
    """Return the GPU that gave these answers; a lost GPU without memory, so that nothing is run on it."""
    memory, capability = answers.get("MemoryInfo") or {}, answers.get("CudaComputeCapability") or (0, 0)
    bus = (answers.get("PciInfo") or {}).get("busId")
    return Gpu(
        answers.index,
        str(answers.get("Name") or "lost"),
        str(answers.get("UUID") or f"lost-{answers.index}"),
        int(memory.get("total", 0)),
        f"{capability[0]}.{capability[1]}",
        pci_address(bus) if bus else None,
    )


def why_divided(gpus: Sequence[Answers]) -> str | None:
    """Return why nothing can be measured if a GPU is divided (MIG): CUDA shows only a part; else None."""
    divided = next((gpu for gpu in gpus if (gpu.get("MigMode") or (0,))[0]), None)
    return f"{divided.where} is divided into parts (MIG): {_undivided(divided.index)}" if divided else None


def _undivided(index: int) -> str:
    return f"nvidia-smi -i {index} -mig 0 (root), or leave it out with {VISIBLE}"


def _require_whole(nvml: Any, gpu: Gpu) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    try:
        divided = nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError:  # this card cannot be divided
        return
    if divided:
        raise EnvironmentCannot(
            f"GPU {gpu.index}, {gpu.name}, is divided into parts (MIG): bench measures whole GPUs",
            advice=_undivided(gpu.index),
        )


def _list_gpus(nvml: Any, host_bytes: int) -> tuple[list[Gpu], dict[int, str]]:
    """Return all GPUs that this process may use, and, by index, why some of them do not answer."""
    gpus, silent = [], {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(nvml, index, host_bytes))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:  # a scheduler gave the GPU to another job
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
        bus=_bus(nvml, handle),
    )


def _bus(nvml: Any, handle: Any) -> str | None:
    try:
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:  # a GPU that is part of the processor
        return None
    return pci_address(bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus)


def _memory(nvml: Any, handle: Any, host_bytes: int) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:  # the GPU shares the host's memory
            return host_bytes
        raise

"""Read the state of the GPUs through NVML. Called in worker processes, since a driver may hang.

Out: for every query, under its NVML name, the answer or the error. BENCH_FAKE_NVML names a file that
describes a machine for fake_nvml.py, which answers in place of a driver; the results are then marked as
simulated.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench.base.strict_json import to_json
from bench.runner.machine.kernel_gpus import kernel_gpus

FAKE = "BENCH_FAKE_NVML"
IDLE_SAMPLES, IDLE_EVERY_SECONDS = 20, 0.15

_PLAIN = (
    "Name", "UUID", "MemoryInfo", "BoardPartNumber", "VbiosVersion", "InforomImageVersion", "PciInfo",
    "CudaComputeCapability", "PersistenceMode", "ComputeMode", "MigMode", "EccMode", "PowerManagementLimit",
    "PowerManagementDefaultLimit", "PowerManagementLimitConstraints", "EnforcedPowerLimit",
    "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth",
    "PcieReplayCounter", "RemappedRows", "RetiredPagesPendingStatus", "ComputeRunningProcesses",
    "GraphicsRunningProcesses", "MPSComputeRunningProcesses", "PowerUsage", "CurrentClocksEventReasons",
)  # fmt: skip
_FIELDS = (
    "GET_GPU_RECOVERY_ACTION", "NVLINK_GET_SPEED", "PCIE_REPLAY_COUNTER", "PCIE_COUNT_CORRECTABLE_ERRORS",
    "PCIE_COUNT_NON_FATAL_ERROR", "PCIE_COUNT_FATAL_ERROR", "PCIE_COUNT_BAD_TLP", "PCIE_COUNT_BAD_DLLP",
)  # fmt: skip
_LINKS = 18
Query = tuple[str, Callable[[Any], Any]]


def load() -> Any:
    """Return pynvml, or the fake that BENCH_FAKE_NVML describes."""
    if path := os.environ.get(FAKE):
        from bench.runner.machine.fake_nvml import FakeNvml

        return FakeNvml.from_file(Path(path))
    import pynvml

    return pynvml


def is_fake() -> bool:
    """Whether BENCH_FAKE_NVML names a scenario, so that GPUs are simulated."""
    return FAKE in os.environ


def begin() -> None:
    """Restart the fake machine, whose faults begin at numbers of NVML sessions counted from now."""
    if path := os.environ.get(FAKE):
        Path(path).with_suffix(".inits").unlink(missing_ok=True)


def read_inventory(say: Callable[[str], None]) -> dict[str, Any]:
    """Return the versions of driver and kernel module, the kernel's list, and the answers of every GPU."""
    nvml = load()
    say("starting NVML")
    nvml.nvmlInit()
    try:
        count = nvml.nvmlDeviceGetCount()
        gpus = [_gpu(nvml, index, count, say) for index in range(count)]
        return {
            "driver": _answer(nvml.nvmlSystemGetDriverVersion),
            "kernel_module": None if is_fake() else _kernel_module(),
            "kernel_gpus": nvml.kernel_gpus() if is_fake() else to_json(kernel_gpus()),
            "gpus": gpus,
        }
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"NVML on GPU {index}")
    handle = _answer(lambda: nvml.nvmlDeviceGetHandleByIndex(index), raw=True)
    if isinstance(handle, dict):
        return {"Name": handle, "UUID": handle}
    answers = {}
    for name, query in _queries(nvml, index, count):
        answers[name] = answer = _answer(partial(query, handle))
        if isinstance(answer, dict) and answer.get("error") == "NVMLError_GpuIsLost":
            break  # every further query would wait, and fail the same way
    return answers


def _queries(nvml: Any, index: int, count: int) -> Iterator[Query]:
    def asking(function: str, *arguments: Any) -> Callable[[Any], Any]:
        return lambda handle: getattr(nvml, f"nvmlDeviceGet{function}")(handle, *arguments)

    for name in _PLAIN:
        yield name, asking(name)
    yield "MaxClockInfo.SM", asking("MaxClockInfo", nvml.NVML_CLOCK_SM)
    for threshold in (0, 1, 2, 3):
        yield f"TemperatureThreshold.{threshold}", asking("TemperatureThreshold", threshold)
    for kind in (0, 1):
        for counter in (0, 1):
            yield f"TotalEccErrors.{kind}.{counter}", asking("TotalEccErrors", kind, counter)
        yield f"RetiredPages.{kind}", asking("RetiredPages", kind)
    for link in range(_LINKS):
        yield f"NvLinkState.{link}", asking("NvLinkState", link)
        for kind in (0, 1, 2):
            yield f"NvLinkErrorCounter.{link}.{kind}", asking("NvLinkErrorCounter", link, kind)
    yield "NvLinkRemoteDeviceType.0", asking("NvLinkRemoteDeviceType", 0)
    for name in _FIELDS:
        if (number := getattr(nvml, f"NVML_FI_DEV_{name}", None)) is not None:
            yield f"field.NVML_FI_DEV_{name}", asking("FieldValues", [number])
    for other in range(count):
        if other != index:
            yield f"P2PStatus.{other}.0", partial(_peer, nvml, other, 0)
            yield f"P2PStatus.{other}.4", partial(_peer, nvml, other, 4)
    yield "SramEccErrorStatus", partial(_sram, nvml)
    yield "FabricInfo", partial(_fabric, nvml)


def _peer(nvml: Any, other: int, capability: int, handle: Any) -> Any:
    return nvml.nvmlDeviceGetP2PStatus(handle, nvml.nvmlDeviceGetHandleByIndex(other), capability)


def _sram(nvml: Any, handle: Any) -> Any:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def _fabric(nvml: Any, handle: Any) -> Any:
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    # The cluster's UUID is left out: it is not needed and would identify the machine.
    return {"state": info.state, "status": info.status, "healthMask": info.healthMask}


def _answer(ask: Callable[[], Any], *, raw: bool = False) -> Any:
    """Return the answer as plain values (`raw`: unchanged), or the error if NVML may have caused it."""
    try:
        answer = ask()
    except AttributeError as error:  # an older pynvml lacks the function
        return {"raised": str(error)}
    except Exception as error:
        if hasattr(error, "value") and type(error).__name__.startswith("NVMLError"):
            return {"error": type(error).__name__, "value": error.value}
        if isinstance(error, (TypeError, ValueError, OSError, UnicodeError)):
            return {"raised": f"{type(error).__name__}: {error}"[:200]}
        raise
    return answer if raw else plain(answer)


def plain(value: Any, depth: int = 0) -> Any:
    """Convert C structures, unions and arrays to values that JSON can hold."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return None  # NVML writes "not available" as all ones
    if isinstance(value, float) and value - value != 0:
        return None  # NaN or infinite: the union holds its other member
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    if depth > 4:
        return None
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name), depth + 1) for name, *_ in value._fields_}
    if isinstance(value, (list, tuple)) or hasattr(value, "_length_"):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "__dict__"):  # pynvml's "friendly" copies of structures
        return {name: plain(item, depth + 1) for name, item in vars(value).items()}
    return str(value)


def _kernel_module() -> str | None:
    """Return the version of the loaded kernel module, which NVML's library must match."""
    with suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
        return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), None)
    return None


def watch_idle(say: Callable[[str], None]) -> dict[str, Any]:
    """Sample memory, load and bus traffic of every GPU for a few seconds while bench does not use them."""
    nvml = load()
    say("looking for other processes")
    nvml.nvmlInit()
    gpus = range(nvml.nvmlDeviceGetCount())
    handles = [_answer(partial(nvml.nvmlDeviceGetHandleByIndex, i), raw=True) for i in gpus]
    empty = ("used_bytes", "busy_percent", "bus_bytes_per_second")
    samples: list[dict[str, Any]] = [{"gpu": i, **{name: [] for name in empty}} for i in gpus]
    for _ in range(IDLE_SAMPLES):
        for entry, handle in zip(samples, handles, strict=True):
            if not isinstance(handle, dict):
                _sample(nvml, handle, entry)
        time.sleep(0.0 if is_fake() else IDLE_EVERY_SECONDS)
    return {"gpus": samples}


def _sample(nvml: Any, handle: Any, entry: dict[str, Any]) -> None:
    """Append one sample to each series of `entry` that this card has."""
    queries: dict[str, Callable[[], float]] = {
        "used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        # NVML's kB/s over the last 20 ms, one number for each direction
        "bus_bytes_per_second": lambda: (
            1000.0 * sum(nvml.nvmlDeviceGetPcieThroughput(handle, way) for way in (0, 1))
        ),
    }
    for name, query in queries.items():
        with suppress(nvml.NVMLError):
            entry[name].append(query())

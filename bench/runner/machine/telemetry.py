"""Telemetry of a run: clocks, power, temperature, throttling, memory and load, once a second.

Out: a line in telemetry.jsonl for each reading; GPUs are read through NVML if there is an NVIDIA driver,
the host from /proc. No torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from bench.base.strict_json import canonical_json
from bench.records.trial import NodeFacts

FILE_NAME = "telemetry.jsonl"
EVERY_SECONDS = 1.0
IN_USE_BYTES = 2 << 30  # on a GPU while this run has no job there; more than any driver keeps for itself


class TelemetrySampler:
    """Appends readings of this machine to a file."""

    def __init__(self, path: Path, node: NodeFacts, others: Callable[[], bool] = lambda: False) -> None:
        """`others` says whether another bench measured on this machine since it was last called."""
        self._file = path.open("ab")
        self._others = others
        self._next = 0.0
        self._handles: list[Any] = []
        self._held: list[int] = []  # bytes on each GPU that other processes held before the current job
        if node.gpus:
            import pynvml

            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in node.gpus]

    def sample(self, trial: str | None) -> bytes | None:
        """Write a reading if the last one is EVERY_SECONDS old, and return its line; cheap to call often."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + EVERY_SECONDS
        gpus = [_gpu(handle) for handle in self._handles]
        for gpu, held in zip(gpus, self._held, strict=False):
            if held > IN_USE_BYTES:
                gpu["held_bytes"] = held
        beside = {"cpus": os.cpu_count()}  # whose load is read; a container may have fewer
        beside |= {"others": True} if self._others() else {}
        return write_reading(self._file, trial, _available_bytes(), gpus, beside)

    def used_bytes(self) -> list[int]:
        """Return the memory in use on each GPU, by any process; 0 if the driver does not report it."""
        return [_gpu(handle).get("used_bytes", 0) for handle in self._handles]

    def note_held(self, gpus: int) -> None:
        """Note, while this run has no job, what other processes hold of its first `gpus` GPUs.

        Later readings tell it.
        """
        self._held = self.used_bytes()[:gpus]

    def close(self) -> None:
        """Close the file; no reading can be taken afterwards."""
        self._file.close()


def write_reading(
    file: BinaryIO,
    trial: str | None,
    available_bytes: int,
    gpus: list[Any],
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Append a reading to telemetry as one line, flush it so that readers see it at once, and return it."""
    line = {
        "at": round(time.time(), 3),
        "trial": trial,
        "load": os.getloadavg()[0],
        "available_bytes": available_bytes,
        "gpus": gpus,
        **beside,
    }
    written = canonical_json(line)
    file.write(written + b"\n")
    file.flush()
    return written


class TelemetryReader:
    """Reads telemetry.jsonl piece by piece while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._peaks: dict[int, tuple[int, bytes]] = {}  # by GPU: its highest clock, and that clock's line

    def new_lines(self) -> list[bytes]:
        """Return earlier lines that hold each GPU's highest clock, then lines written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read_bytes += whole
        lines = data[:whole].splitlines()
        peaks = list(dict.fromkeys(line for _, line in self._peaks.values()))
        for line in lines:
            self._keep_peaks(line)
        return [*peaks, *lines]

    def _keep_peaks(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # a torn line is not a reading
            reading = json.loads(line)
            for index, gpu in enumerate(reading["gpus"] if reading["trial"] else ()):
                mhz = gpu.get("sm_mhz")
                if type(mhz) is int and mhz > self._peaks.get(index, (0, b""))[0]:
                    self._peaks[index] = mhz, line


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _gpu(handle: Any) -> dict[str, Any]:
    """Return a reading of one GPU, without the figures that this card does not give."""
    import pynvml

    reading = {}
    for name, read in gpu_queries(pynvml, handle).items():
        with suppress(pynvml.NVMLError):
            reading[name] = read()
    return reading


def gpu_queries(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
    """Return the NVML call for each figure of a GPU's reading, by the figure's name."""
    return {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "energy_joules": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    }

"""What the machine did meanwhile: clocks, power, temperature, throttling, memory, load.

One line a second in telemetry.jsonl, from NVML where there is one, from /proc everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.base.strict_json import canonical_json
from bench.records.trial import NodeFacts

FILE_NAME = "telemetry.jsonl"
EVERY_SECONDS = 1.0


class TelemetrySampler:
    def __init__(self, path: Path, node: NodeFacts) -> None:
        self._file = path.open("ab")
        self._next = 0.0
        self._handles: list[Any] = []
        if node.gpus:
            import pynvml

            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in node.gpus]

    def sample(self, trial: str | None) -> None:
        """Takes a sample if one is due; cheap to call often."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        line = {
            "at": round(time.time(), 3),
            "trial": trial,
            "load": os.getloadavg()[0],
            "available_bytes": _available_bytes(),
            "gpus": [_gpu(handle) for handle in self._handles],
        }
        self._file.write(canonical_json(line) + b"\n")
        self._file.flush()

    def used_bytes(self) -> list[int]:
        """Of each GPU's memory, whoever uses it; 0 where it does not say."""
        return [_gpu(handle).get("used_bytes", 0) for handle in self._handles]

    def close(self) -> None:
        self._file.close()


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _gpu(handle: Any) -> dict[str, Any]:
    """Each reading alone may be missing on a card; the others still count."""
    import pynvml

    found = {}
    for name, read in questions(pynvml, handle).items():
        with suppress(pynvml.NVMLError):
            found[name] = read()
    return found


def questions(nvml: Any, handle: Any) -> dict[str, Callable[[], Any]]:
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

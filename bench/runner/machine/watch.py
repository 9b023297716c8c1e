"""Sample the GPUs during a node check, in a separate process, since a driver may hang.

python -m bench.runner.machine.watch FILE EVERY_SECONDS

Appends a line to FILE for each reading, in the form of telemetry.jsonl with PCIe links and Xid events added.
Ends when its standard input is closed.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from bench.base.linux_processes import die_with_parent
from bench.runner.machine import telemetry
from bench.runner.machine.nvml import load


class Watch:
    """The open NVML session and the file that its readings go to."""

    def __init__(self, nvml: Any, file: BinaryIO) -> None:
        self._nvml = nvml
        self._file = file
        nvml.nvmlInit()
        self._handles = [self._handle(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._events: Any = None
        self._reporting = self._register()

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError:
            return None

    def _register(self) -> set[int]:
        """Subscribe to Xid events, which needs no root; return the indices of GPUs that support them."""
        nvml = self._nvml
        reporting = set()
        with suppress(nvml.NVMLError):
            self._events = nvml.nvmlEventSetCreate()
            for index, handle in enumerate(self._handles):
                if handle is not None:
                    with suppress(nvml.NVMLError):
                        nvml.nvmlDeviceRegisterEvents(
                            handle, nvml.nvmlEventTypeXidCriticalError, self._events
                        )
                        reporting.add(index)
        return reporting

    def look(self) -> None:
        """Write one reading of all GPUs to the file."""
        xids = self._xids()
        gpus = [
            self._gpu(i, handle) | {"xids": xids.get(i, []) if i in self._reporting else None}
            for i, handle in enumerate(self._handles)
        ]
        telemetry.write_reading(self._file, None, 0, gpus)

    def _xids(self) -> dict[int, list[int]]:
        """Return the Xid events since the last reading, by GPU."""
        xids: dict[int, list[int]] = {}
        nvml = self._nvml
        while self._reporting:
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
                index = int(nvml.nvmlDeviceGetIndex(event.device))
            except nvml.NVMLError:  # no event is pending
                break
            xids.setdefault(index, []).append(int(event.eventData))
        return xids

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        if handle is None:
            return {"lost": "it has no handle"}
        queries = telemetry.gpu_queries(nvml, handle) | {
            "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        reading: dict[str, Any] = {}
        for name, query in queries.items():
            try:
                reading[name] = query()
            except nvml.NVMLError as error:
                if type(error).__name__ in ("NVMLError_GpuIsLost", "NVMLError_Unknown"):
                    return {"lost": type(error).__name__.removeprefix("NVMLError_")}
        return reading


def watch_until(path: Path, ended: Callable[[], bool]) -> None:
    """Append readings to the file until `ended()` is true; `ended` also waits between two readings."""
    with path.open("ab") as file:
        watch = Watch(load(), file)
        watch.look()
        while not ended():
            watch.look()
        with suppress(watch._nvml.NVMLError):
            watch.look()  # it has the events since the last reading


def main() -> int:
    """Sample into the file of the first argument until stdin is closed."""
    die_with_parent(os.getppid())
    every = float(sys.argv[2])
    watch_until(Path(sys.argv[1]), lambda: bool(select.select([sys.stdin], [], [], every)[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

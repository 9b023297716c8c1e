"""Watches the GPUs while they are checked, in a process of its own: it may hang, the run may not.

python -m bench.runner.machine.watch FILE EVERY_SECONDS

A line a look in FILE, as telemetry.jsonl has them, with PCIe links and Xid events besides. Ends when its
standard input does.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from typing import Any, BinaryIO

from bench.base.linux_processes import die_with_parent
from bench.base.strict_json import canonical_json
from bench.runner.machine import telemetry
from bench.runner.machine.nvml import load


class Watch:
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
        """For Xid events, which need no root. The GPUs that have them: not all do."""
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
        xids = self._xids()
        line = {
            "at": round(time.time(), 3),
            "trial": None,
            "load": os.getloadavg()[0],
            "available_bytes": 0,
            "gpus": [
                self._gpu(i, handle) | {"xids": xids.get(i, []) if i in self._reporting else None}
                for i, handle in enumerate(self._handles)
            ],
        }
        self._file.write(canonical_json(line) + b"\n")
        self._file.flush()

    def _xids(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        nvml = self._nvml
        while self._reporting:
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
                index = int(nvml.nvmlDeviceGetIndex(event.device))
            except nvml.NVMLError:  # none waits
                break
            found.setdefault(index, []).append(int(event.eventData))
        return found

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        if handle is None:
            return {"lost": "it has no handle"}
        asked = telemetry.questions(nvml, handle) | {
            "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        found: dict[str, Any] = {}
        for name, ask in asked.items():
            try:
                found[name] = ask()
            except nvml.NVMLError as error:
                if type(error).__name__ in ("NVMLError_GpuIsLost", "NVMLError_Unknown"):
                    return {"lost": type(error).__name__.removeprefix("NVMLError_")}
        return found


def main() -> int:
    die_with_parent(os.getppid())
    every = float(sys.argv[2])
    with open(sys.argv[1], "ab") as file:  # noqa: PTH123
        watch = Watch(load(), file)
        while True:
            watch.look()
            ready, _, _ = select.select([sys.stdin], [], [], every)
            if ready:
                break
        with suppress(watch._nvml.NVMLError):
            watch.look()  # an event that came last
    return 0


if __name__ == "__main__":
    sys.exit(main())

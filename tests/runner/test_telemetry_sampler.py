"""A reading tells of GPU memory that other processes hold, on the GPUs that train."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records.trial import Gpu, NodeFacts
from bench.runner.machine.telemetry import IN_USE_BYTES, TelemetrySampler

GIB = 1 << 30
GPUS = tuple(Gpu(index, "NVIDIA H200", f"GPU-{index}", 140 * GIB, "9.0") for index in range(3))
NODE = NodeFacts("EPYC", 1024, 2**39, "Debian 12", "6.1", "3.11.2", GPUS, None)


class Driver:
    """NVML of three GPUs that reports nothing but the memory in use."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self) -> None:
        self.used = [GIB // 2] * len(GPUS)

    def nvmlInit(self) -> None:  # noqa: N802
        """Do nothing: there is no library to open."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self.used[handle])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return self._refuse
        return name

    def _refuse(self, *_: object) -> None:
        raise self.NVMLError


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr("bench.runner.machine.telemetry.EVERY_SECONDS", 0.0)
    return driver


def held(sampler: TelemetrySampler) -> list[int | None]:
    line = sampler.sample("a trial")
    assert line is not None
    return [gpu.get("held_bytes") for gpu in json.loads(line)["gpus"]]


def test_memory_that_others_hold_is_noted_while_no_job_runs(driver: Driver, tmp_path: Path) -> None:
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", NODE)
    sampler.note_held(2)
    driver.used = [60 * GIB] * 3  # a job of this run
    assert held(sampler) == [None, None, None]

    driver.used = [IN_USE_BYTES, IN_USE_BYTES + 1, 90 * GIB]
    sampler.note_held(2)
    driver.used = [60 * GIB] * 3
    assert held(sampler) == [None, IN_USE_BYTES + 1, None], "the third GPU does not train"

    driver.used = [GIB // 2] * 3
    sampler.note_held(2)
    assert held(sampler) == [None, None, None], "the other process has ended"

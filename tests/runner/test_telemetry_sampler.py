"""A reading of telemetry: the machine, its GPUs, and the memory on them that other processes hold."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records.trial import Gpu, NodeFacts
from bench.runner.machine import telemetry
from bench.runner.machine.telemetry import TelemetrySampler, gpu_queries

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

    driver.used = [2 * GIB, 2 * GIB + 1, 90 * GIB]
    sampler.note_held(2)
    driver.used = [60 * GIB] * 3
    assert held(sampler) == [None, 2 * GIB + 1, None], "the third GPU does not train"

    driver.used = [GIB // 2] * 3
    sampler.note_held(2)
    assert held(sampler) == [None, None, None], "the other process has ended"


# --- what a reading has ---------------------------------------------------------------------------------


def sampled(sampler: TelemetrySampler, trial: str | None = "a trial") -> dict[str, Any]:
    line = sampler.sample(trial)
    assert line is not None
    reading = json.loads(line)
    assert isinstance(reading, dict)
    return reading


def test_a_reading_is_of_this_machine_and_of_the_trial_in_flight(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 1_790_000_000.123456)
    monkeypatch.setattr(telemetry, "time", clock)
    monkeypatch.setattr("os.getloadavg", lambda: (3.5, 2.0, 1.0))
    monkeypatch.setattr("os.cpu_count", lambda: 96)
    path = tmp_path / "telemetry.jsonl"
    sampler = TelemetrySampler(path, NODE)
    reading = sampled(sampler)
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    assert 0 < reading.pop("available_bytes") < total
    assert reading == {
        "at": 1_790_000_000.123, "trial": "a trial", "load": 3.5, "cpus": 96,
        "gpus": [{"used_bytes": GIB // 2}] * 3,
    }  # fmt: skip
    assert sampled(sampler, None)["trial"] is None
    assert len(path.read_bytes().splitlines()) == 2, "each reading is written at once"
    sampler.close()
    TelemetrySampler(path, NODE).close()
    assert len(path.read_bytes().splitlines()) == 2, "a run that continues keeps what was read"


def test_available_memory_is_the_kernels_in_bytes(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable:     768 kB\nCached: 3 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda path: text if str(path) == "/proc/meminfo" else "")
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", NODE)
    assert sampled(sampler)["available_bytes"] == 768 * 1024
    text = "MemTotal: 900 kB\n"
    assert sampled(sampler)["available_bytes"] == 0


def test_a_machine_without_gpus_needs_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", replace(NODE, gpus=()))
    sampler.note_held(0)
    assert sampled(sampler)["gpus"] == sampler.used_bytes() == []


def test_a_reading_says_that_another_bench_measured(driver: Driver, tmp_path: Path) -> None:
    answers = iter([False, True, False])
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", NODE, lambda: next(answers))
    assert [sampled(sampler).get("others") for _ in range(3)] == [None, True, None]


def test_readings_are_at_least_a_second_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments, now = (500.0, 500.9, 501.0, 501.1, 502.05, 503.0, 503.05), 0.0
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: 1_790_000_000.0)
    monkeypatch.setattr(telemetry, "time", clock)
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", replace(NODE, gpus=()))
    written = []
    for now in moments:  # noqa: B007 - the clock reads it
        written.append(sampler.sample(None) is not None)
    assert written == [True, False, True, False, True, False, True]


def test_memory_in_use_is_0_on_a_card_that_does_not_tell(driver: Driver, tmp_path: Path) -> None:
    driver.nvmlDeviceGetMemoryInfo = driver._refuse  # type: ignore[assignment]
    sampler = TelemetrySampler(tmp_path / "telemetry.jsonl", NODE)
    assert sampler.used_bytes() == [0, 0, 0]
    sampler.note_held(3)
    assert held(sampler) == [None, None, None]


def test_figures_are_in_the_units_that_their_names_say() -> None:
    answers = {
        "nvmlDeviceGetClockInfo": lambda handle, kind: {"SM": 1980, "MEM": 2619}[kind],
        "nvmlDeviceGetPowerUsage": lambda handle: 699_500,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 12_345_678,
        "nvmlDeviceGetTemperature": lambda handle, sensor: {"GPU": 61}[sensor],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x20,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5, total=6),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=99, memory=40),
    }
    names = {"NVML_CLOCK_SM": "SM", "NVML_CLOCK_MEM": "MEM", "NVML_TEMPERATURE_GPU": "GPU"}
    queries = gpu_queries(SimpleNamespace(**answers, **names), 0)
    assert {name: query() for name, query in queries.items()} == {
        "sm_mhz": 1980, "memory_mhz": 2619, "power_watts": 699.5, "energy_joules": 12345.678, "celsius": 61,
        "throttle_reasons": 0x20, "used_bytes": 5, "busy_percent": 99,
    }  # fmt: skip

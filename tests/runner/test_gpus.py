"""A run uses the GPUs in CUDA_VISIBLE_DEVICES that answer and are not partitioned."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from bench.base.errors import EnvironmentCannot
from bench.runner.machine.gpus import gpus_here

HOST_BYTES = 128 << 30
NAMES = ("NVIDIA A100-SXM4-80GB", "NVIDIA RTX A6000", "NVIDIA DGX Display", "NVIDIA A100-SXM4-80GB")


@pytest.fixture(autouse=True)
def _four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cards, not all alike; the NVML handle of each is its index."""
    answers: dict[str, Callable[..., Any]] = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "SystemGetDriverVersion": lambda: "580.65.06",
        "DeviceGetCount": lambda: len(NAMES),
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetCudaComputeCapability": lambda gpu: (8, 0),
        "DeviceGetName": lambda gpu: NAMES[gpu],
        "DeviceGetUUID": lambda gpu: f"GPU-{'abcc'[gpu]}{gpu}",
        "DeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=80 << 30),
        "DeviceGetMigMode": failing(pynvml.NVML_ERROR_NOT_SUPPORTED),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def failing(code: int, only: int | None = None) -> Callable[[int], Any]:
    def answer(gpu: int) -> Any:
        if only is None or gpu == only:
            raise pynvml.NVMLError(code)
        return gpu

    return answer


@pytest.mark.parametrize(
    ("shown", "indices"),
    [
        (None, [0, 1, 2, 3]), ("3,1", [3, 1]), (" 1 , 0", [1, 0]), ("GPU-b1", [1]), ("GPU-c3,GPU-a", [3, 0]),
        ("", []), ("-1", []), ("2,-1,0", [2]),
    ],
)  # fmt: skip
def test_visible_gpus_are_used_in_the_given_order(
    shown: str | None, indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    gpus, driver = gpus_here(HOST_BYTES)
    assert [gpu.index for gpu in gpus] == indices
    assert [gpu.name for gpu in gpus] == [NAMES[index] for index in indices]
    assert driver == "580.65.06"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("4", "4 matches no GPU of this machine"),
        ("0,9,1", "9 matches no GPU of this machine"),
        ("GPU-c", "GPU-c matches no GPU of this machine, or several"),
        ("NoDevFiles", "NoDevFiles matches no GPU of this machine"),
        ("1,1", "names a GPU twice"),
        ("MIG-5c8a", "a part of a GPU"),
    ],
)
def test_entries_that_cuda_would_ignore_are_reported(
    shown: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(EnvironmentCannot, match=said) as raised:
        gpus_here(HOST_BYTES)
    assert raised.value.advice


def test_a_lost_gpu_is_reported_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", failing(pynvml.NVML_ERROR_GPU_IS_LOST, 2))
    with pytest.raises(EnvironmentCannot, match=r"GPU 2 does not answer: .*lost"):
        gpus_here(HOST_BYTES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    assert [gpu.index for gpu in gpus_here(HOST_BYTES)[0]] == [0, 1, 3]


def test_gpus_allocated_to_other_jobs_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", failing(pynvml.NVML_ERROR_NO_PERMISSION, 0))
    assert [gpu.index for gpu in gpus_here(HOST_BYTES)[0]] == [1, 2, 3]


def test_a_gpu_without_its_own_memory_uses_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", failing(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert {gpu.memory_bytes for gpu in gpus_here(HOST_BYTES)[0]} == {HOST_BYTES}


def test_a_partitioned_gpu_is_refused_unless_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda gpu: [int(gpu == 3), 0])
    with pytest.raises(EnvironmentCannot, match="GPU 3, NVIDIA A100-SXM4-80GB, is divided") as raised:
        gpus_here(HOST_BYTES)
    assert "-mig 0" in str(raised.value.advice)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert len(gpus_here(HOST_BYTES)[0]) == 2


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpus_here(HOST_BYTES) == ((), None)

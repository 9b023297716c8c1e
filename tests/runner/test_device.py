"""A device has a share of its node's cores, and its own memory."""

from __future__ import annotations

import pytest
import torch

from bench.runner.trial import device
from bench.runner.trial.device import Device

CORES = 128


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cores", lambda: CORES)


def launched(monkeypatch: pytest.MonkeyPatch, **environment: int) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def test_cores_are_shared_among_the_devices_of_this_node_not_of_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, RANK=19, WORLD_SIZE=256, LOCAL_RANK=3, LOCAL_WORLD_SIZE=16)
    own = Device.own("cuda")
    assert (own.index, own.count) == (3, 16)
    assert own.loaders() == CORES // 2 // 16


def test_without_a_launcher_a_device_is_alone() -> None:
    assert Device.own("cuda") == Device("cuda", 0, 1)
    assert Device.own("cuda").loaders() == 8  # more threads do not help
    assert Device.own("cpu").loaders() == 0  # more threads would take cores from training


@pytest.mark.parametrize(("quota", "threads"), [(128, 16), (2, 2)])
def test_a_cpu_has_no_more_threads_than_it_may_use_cores(
    quota: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(device, "cores", lambda: quota)
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1] if told else 16)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    Device("cpu").choose()
    assert torch.get_num_threads() == threads


def test_a_torch_without_cuda_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(RuntimeError, match="this torch has no CUDA support: install one that has"):
        Device("cuda").choose()


@pytest.mark.parametrize(
    ("capability", "refused"), [((7, 0), True), ((7, 5), False), ((9, 0), False), ((12, 1), False)]
)
def test_a_card_that_torch_has_no_code_for_is_refused_before_measuring(
    capability: tuple[int, int], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "compute_120"])
    if not refused:
        Device("cuda").choose()
        return
    with pytest.raises(RuntimeError, match=r"no code for compute capability 7\.0, its oldest is 7\.5"):
        Device("cuda").choose()


@pytest.mark.parametrize(("graphs", "peak"), [(None, 5), ("0", 5), ("1", 80)])
def test_memory_kept_by_cuda_graphs_is_counted(
    graphs: str | None, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this rule, 17.6 GiB were reported for a pythia-1b that held 92.2 GiB on an H200."""
    monkeypatch.delenv("TORCHINDUCTOR_CUDAGRAPHS", raising=False)
    if graphs is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CUDAGRAPHS", graphs)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 80)
    assert Device("cuda").peak_bytes() == peak
    assert Device("cuda").peak_bytes(recorded=True) == 80

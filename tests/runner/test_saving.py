"""The time of a checkpoint on a disk with room for all of it, for a part, or for nearly nothing."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.base.errors import EnvironmentCannot
from bench.runner.trial.checkpoint_time import seconds_to_save
from bench.runner.trial.device import Device

MIB = 1 << 20
TOTAL = 96 * MIB  # a weight of 32 MiB, and two moments


@pytest.fixture
def strategy() -> SimpleNamespace:
    weight = torch.nn.Parameter(torch.zeros(TOTAL // 3 // 4))
    optimizer = torch.optim.Adam([weight])
    optimizer.state[weight] = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
    return SimpleNamespace(optimizer=optimizer)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes of each written file; writing takes one second per MiB."""
    sizes: list[int] = []
    clock = [0.0]
    save = torch.save

    def timed(what: object, file: object) -> None:
        save(what, file)
        sizes.append(file.tell())  # type: ignore[attr-defined]
        clock[0] += sizes[-1] / MIB

    monkeypatch.setattr(torch, "save", timed)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    return sizes


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=size))


@pytest.mark.parametrize(
    ("free_bytes", "devices", "written_bytes"),
    [
        (1 << 40, 1, TOTAL),
        (80 * MIB, 1, 40 * MIB),  # the weight and a part of a moment
        (40 * MIB, 1, 20 * MIB),  # less than the first tensor
        (160 * MIB, 4, 20 * MIB),  # a disk that is shared with others
    ],
)
def test_saving_is_measured_with_at_most_half_of_the_free_disk_and_scaled(
    free_bytes: int, devices: int, written_bytes: int, tmp_path: Path, strategy: SimpleNamespace,
    saved: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    free(monkeypatch, free_bytes)
    seconds = seconds_to_save(strategy, Device("cpu", 0, devices), tmp_path / "checkpoint.pt")
    assert saved == [pytest.approx(written_bytes, rel=0.01)]
    assert seconds == pytest.approx(TOTAL / MIB, rel=0.01)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_and_not_measured_as_fast(
    tmp_path: Path, strategy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 20 * MIB)
    with pytest.raises(EnvironmentCannot, match="20 MiB free for temporary files, too little"):
        seconds_to_save(strategy, Device("cpu"), tmp_path / "checkpoint.pt")

"""The layout of weights in ZeRO's buffers, and files left behind when a compilation is killed."""

from __future__ import annotations

import os
import subprocess
import time
from itertools import accumulate
from pathlib import Path

import pytest
from torch import nn

from bench.runner.trial.zero_strategy import ALIGNED, STALE_SECONDS, drop_stale_locks, even_first


def test_the_lock_of_a_killed_compilation_does_not_block_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, fresh = (tmp_path / "py311_cpu" / name / "lock" for name in ("cpu_adam", "shm_comm"))
    for lock in (old, fresh):
        lock.parent.mkdir(parents=True)
        lock.touch()
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    drop_stale_locks()
    assert not old.exists()
    assert fresh.exists(), "somebody may be compiling it right now"


def test_the_lock_of_a_slow_compilation_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a compiler that works in the lock's folder takes longer than STALE_SECONDS."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "cpu_adam/lock"
    lock.parent.mkdir()
    lock.touch()
    long_ago = time.time() - STALE_SECONDS - 1
    os.utime(lock, (long_ago, long_ago))
    with subprocess.Popen(["cat"], cwd=lock.parent, stdin=subprocess.PIPE):
        drop_stale_locks()
        assert lock.exists()
    drop_stale_locks()
    assert not lock.exists()


def test_a_weight_of_odd_size_does_not_misalign_others() -> None:
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 50_265), "last": nn.Linear(8, 16)})
    weights = even_first(model.parameters())
    assert {*map(id, weights)} == {*map(id, model.parameters())}
    starts = accumulate((weight.numel() for weight in weights), initial=0)
    assert all(start % ALIGNED == 0 for start, _ in zip(starts, weights, strict=False))
    first, second = (w for w in weights if w.shape == (8,) or w.shape == (8, 8))
    assert first is model["body"].weight  # the order is otherwise unchanged
    assert second is model["body"].bias

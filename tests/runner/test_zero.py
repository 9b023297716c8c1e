"""What ZeRO leaves behind where it is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.runner.zero import STALE_SECONDS, drop_stale_locks


def test_the_lock_of_a_killed_compilation_does_not_hold_up_the_next_one(
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

"""bench uses the share of a machine that a container or a scheduler grants."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.base import machine_share
from bench.runner.machine.probe import probe

GIB = 1 << 30
UNLIMITED = "9223372036854771712"  # the format of cgroups v1


@pytest.mark.parametrize(
    ("own", "files", "memory_gib", "cores"),
    [
        ("0::/\n", {}, 256, 64),
        ("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"}, 256, 64),
        ("0::/\n", {"memory.max": str(32 * GIB), "cpu.max": "350000 100000"}, 32, 4),
        ("0::/\n", {"memory.max": str(1024 * GIB), "cpu.max": "9900000 100000"}, 256, 64),
        (
            "0::/slurm/job_7/step_0\n",
            {"slurm/job_7/memory.max": str(48 * GIB), "slurm/job_7/step_0/memory.max": "max"},
            48,
            64,
        ),
        (
            "4:memory:/docker/7f\n3:cpu,cpuacct:/docker/7f\n",
            {
                "memory/memory.limit_in_bytes": str(16 * GIB),
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            16,
            2,
        ),
        (
            "4:memory:/\n1:cpu:/\n0::/\n",
            {
                "memory/memory.limit_in_bytes": UNLIMITED,
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            256,
            64,
        ),
    ],
    ids=[
        "nothing",
        "no limit",
        "cgroups 2",
        "more than there is",
        "a job's",
        "cgroups 1",
        "cgroups 1, no limit",
    ],
)
def test_the_narrowest_limit_counts(
    own: str,
    files: Mapping[str, str],
    memory_gib: int,
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine_share, "GROUPS", tmp_path)
    monkeypatch.setattr(machine_share, "OWN", tmp_path / "own")
    monkeypatch.setattr(
        os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 1024}[name]
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    node = probe(gpus_too=False)
    assert (node.memory_bytes / GIB, node.cpu_cores) == (memory_gib, cores)


def test_a_share_of_a_machine_is_reported_in_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in range(8):
        (tmp_path / "gpus" / str(name)).mkdir(parents=True)
    (tmp_path / "own").write_text("0::/job_7\n")
    (tmp_path / "job_7").mkdir()
    (tmp_path / "job_7/memory.max").write_text(str(48 * GIB))
    monkeypatch.setattr(machine_share, "GROUPS", tmp_path)
    monkeypatch.setattr(machine_share, "OWN", tmp_path / "own")
    monkeypatch.setattr(machine_share, "DRIVER", tmp_path / "gpus")
    monkeypatch.setattr(machine_share, "physical_bytes", lambda: 256 * GIB)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine_share.parts(2) == ["8 of 64 cores", "48.0 GiB of 256.0 GiB", "2 of 8 GPUs"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    (tmp_path / "job_7/memory.max").write_text(str(250 * GIB))  # the share of a whole node under a scheduler
    assert machine_share.parts(8) == machine_share.parts(None) == []

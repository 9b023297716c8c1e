"""Groups of processes, by a made-up /proc: what they use, how long they compute, and how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.base import linux_processes
from bench.base.linux_processes import (
    any_works_in,
    ended_for_memory,
    ended_how,
    group_bytes,
    kill_group,
    oom_kills,
    programs_ticks,
)

OWN, COMPILER = "/usr/bin/python3.11", "/usr/bin/c++"
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the module takes for /proc, in which this process executes OWN."""
    root = tmp_path / "proc"
    (root / "self").mkdir(parents=True)
    (root / "self/exe").symlink_to(OWN)
    (root / "version").touch()

    def moved(path: str) -> Path:
        return root / path.removeprefix("/proc").removeprefix("/") if path.startswith("/proc") else Path(path)

    monkeypatch.setattr(linux_processes, "Path", moved)
    return root


def process(
    proc: Path,
    pid: int,
    group: int,
    *,
    program: str = OWN,
    ticks: tuple[int, ...] = (0,) * 4,
    name: str = "a",
) -> Path:
    """Write what the kernel tells of a process; its memory is 100 pages, 30 of them shared."""
    folder = proc / str(pid)
    folder.mkdir()
    before = ["S", "1", str(group), "9", "0", "-1", "4194304", "11", "12", "13", "14"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join([*before, *map(str, ticks), '20', '0'])}\n")
    (folder / "statm").write_text("5000 100 30 1 0 80 0\n")
    (folder / "exe").symlink_to(program)
    (folder / "cwd").symlink_to(proc)
    return folder


def test_a_groups_memory_is_what_its_processes_share_with_nobody(proc: Path) -> None:
    for pid, group in ((10, 10), (11, 10), (12, 12)):
        process(proc, pid, group)
    assert group_bytes(10) == 2 * 70 * PAGE
    assert group_bytes(12) == 70 * PAGE
    assert group_bytes(13) == 0


def test_a_process_that_ends_meanwhile_uses_nothing(proc: Path) -> None:
    process(proc, 10, 10)
    (process(proc, 11, 10) / "statm").unlink()
    (process(proc, 12, 10) / "stat").unlink()
    (process(proc, 13, 10) / "stat").write_text("13 (a) S")
    assert group_bytes(10) == 70 * PAGE


def test_a_name_may_look_like_the_end_of_a_name(proc: Path) -> None:
    process(proc, 10, 10, name="x) R 1 99")
    assert (group_bytes(10), group_bytes(99)) == (70 * PAGE, 0)


def test_programs_are_processes_that_execute_another_file_than_bench(proc: Path) -> None:
    process(proc, 10, 10, ticks=(1, 2, 3, 4))
    process(proc, 11, 10, program=COMPILER, ticks=(1000, 200, 30, 4))
    process(proc, 12, 12, program=COMPILER, ticks=(1, 1, 1, 1))
    assert programs_ticks(10) == {11: 1234}, "its own time, and that of its children that have ended"
    (process(proc, 13, 10, program=COMPILER) / "exe").unlink()
    assert programs_ticks(10) == {11: 1234}
    assert programs_ticks(99) == {}


def test_a_process_works_in_a_folder(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "work")
    (process(proc, 10, 10) / "cwd").unlink()
    assert not any_works_in(tmp_path / "work")
    cwd = process(proc, 11, 10) / "cwd"
    assert not any_works_in(tmp_path / "work")
    cwd.unlink()
    cwd.symlink_to(tmp_path / "work")
    assert any_works_in(tmp_path / "work")
    assert any_works_in(tmp_path / "link")


def test_the_kernel_counts_the_processes_that_it_ends_for_memory(proc: Path) -> None:
    (proc / "vmstat").write_text("nr_free_pages 12\noom_kill_x 9\noom_kill 3\nswpin 4\n")
    assert oom_kills() == 3
    (proc / "vmstat").write_text("nr_free_pages 12\n")
    assert oom_kills() == 0


def test_an_end_is_by_a_signal_or_with_a_code() -> None:
    assert ended_how(signal.SIGKILL) == "by SIGKILL"
    assert ended_how(signal.SIGSEGV | 0x80) == "by SIGSEGV", "with a core dump"
    assert ended_how(3 << 8) == "with exit code 3"
    assert ended_how(0) == "with exit code 0"


def test_only_a_kill_that_the_kernel_counted_is_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_processes, "oom_kills", lambda: 5)
    assert ended_for_memory(signal.SIGKILL, 4)
    assert not ended_for_memory(signal.SIGKILL, 5)
    assert not ended_for_memory(signal.SIGTERM, 4)
    assert not ended_for_memory(0, 4)
    assert not ended_for_memory(signal.SIGKILL << 8, 4), "an exit code"


def test_a_group_is_killed_together_and_may_have_ended_before() -> None:
    group = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    kill_group(group.pid)
    assert group.wait() == -signal.SIGKILL
    kill_group(group.pid)


CHILDREN = """
import subprocess
from bench.base.linux_processes import adopt_orphans, children, end_all_children
adopt_orphans()
subprocess.run(["sh", "-c", "sleep 600 & sleep 600 &"], check=True)
assert len(children()) == 2, children()
end_all_children()
assert children() == []
end_all_children()
"""


def test_orphans_are_adopted_and_ended() -> None:
    subprocess.run([sys.executable, "-c", CHILDREN], check=True)


def test_a_request_that_the_kernel_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match=r"^\[Errno 22\] prctl$"):
        linux_processes._prctl(9999, 0)
    with pytest.raises(OSError, match="prctl"):
        linux_processes._prctl(1, 9999)  # no signal has this number


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; return when it and all that hold its output have ended."""
    whole = f"import os, sys, time\nfrom bench.base.linux_processes import *\n{code}"
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


def test_a_worker_is_the_first_that_the_kernel_ends_for_memory() -> None:
    done = fresh("preferred_victim(); print(open('/proc/self/oom_score_adj').read())")
    assert done.stdout.strip() == "1000"


def test_a_process_ends_with_its_parent() -> None:
    done = fresh("parent = os.getpid()\nif not os.fork(): die_with_parent(parent); time.sleep(600)")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_whose_parent_has_ended_already_ends_too() -> None:
    assert fresh("die_with_parent(os.getppid() + 1); sys.exit(7)").returncode == 1
    assert fresh("die_with_parent(os.getppid()); sys.exit(7)").returncode == 7

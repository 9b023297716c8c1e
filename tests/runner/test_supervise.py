"""The supervisor: every job ends in an outcome, in bounded time, and leaves nothing behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.bundle.tar_format import MAX_MEMBER_BYTES
from bench.records.trial import Crashed
from bench.runner.processes import supervisor as supervising
from bench.runner.processes.supervisor import Limits, Supervisor

WORK = "tests.runner.fake_worker:work"


@contextmanager
def supervisor(folder: Path) -> Iterator[Supervisor]:
    with Supervisor([], lambda event: None, folder / "server.txt", WORK) as started:
        yield started


def run(owner: Supervisor, folder: Path, action: str, limits: Limits | None = None) -> str:
    """Run a job; return the name of its measured limit, or the reason of its failure."""
    try:
        return owner.ceilings([action], "cpu", 1, folder / "log.txt", limits or Limits(20))[0].name
    except EnvironmentCannot as error:
        return error.message


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_job_answers(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        assert run(owner, tmp_path, "answer:first") == "first"
        assert run(owner, tmp_path, "answer:second") == "second"


def test_a_delay_of_the_supervisor_does_not_time_out_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor was stopped, as by Ctrl-Z, while the job made progress that it did not see."""
    monkeypatch.setattr(supervising, "ASLEEP_SECONDS", 1.0)
    held_up: list[bool] = []

    def tick(event: dict[str, Any] | None) -> None:
        if event is None and held_up:
            held_up.clear()
            time.sleep(3.0)

    with Supervisor([], tick, tmp_path / "server.txt", WORK) as owner:
        owner.ceilings(["answer:started"], "cpu", 1, tmp_path / "log.txt", Limits(20))
        held_up.append(True)
        assert run(owner, tmp_path, "slow:4", Limits(2.5)) == "slow"


def test_cuda_counts_gpus_as_nvml_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with supervisor(tmp_path) as owner:
        assert run(owner, tmp_path, "environment:CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        ("answer", "answered"),
        ("memory", "out-of-memory: gpu, of rank 1"),
        ("error", "crashed: rank 1: ValueError: no"),
        ("killed", "crashed: rank 1 ended by SIGKILL"),
        ("killed-for-memory", "out-of-memory: host, the kernel ended rank 1 for memory"),
        ("full", "no room, 0 B free"),
        ("speechless", "No space left on device"),
    ],
)
def test_a_member_that_fails_ends_the_others_and_the_next_job_runs(
    failure: str, end: str, tmp_path: Path
) -> None:
    """After a failure, the remaining members wait inside a collective, where no message reaches them."""
    with supervisor(tmp_path) as owner:
        assert end in run(owner, tmp_path, f"team:{failure}", Limits(60))
        assert run(owner, tmp_path, "answer:next") == "next"


@pytest.mark.parametrize(
    ("action", "limits", "end"),
    [
        ("sleep:talking", Limits(1.0), "timed-out: 1.0, sleeping"),
        ("sleep:silent", Limits(20, silence_seconds=1.0), "timed-out: 1.0, sleeping: no sign of life"),
        ("hanging-compiler", Limits(60, silence_seconds=1.0), "timed-out: 1.0, start: no sign of life"),
        ("die:SIGSEGV", Limits(20), "crashed: ended by SIGSEGV during dying"),
        ("die:SIGKILL", Limits(20), "crashed: ended by SIGKILL during dying"),
        ("half-line", Limits(20), "crashed: ended by SIGKILL during start"),
        ("quiet:3", Limits(20), "crashed: ended with exit code 3 during start, without an outcome"),
        ("quiet:0", Limits(20), "crashed: ended with exit code 0 during start, without an outcome"),
    ],
)
def test_a_job_that_fails_is_ended_and_named_and_the_next_one_runs(
    tmp_path: Path, action: str, limits: Limits, end: str
) -> None:
    with supervisor(tmp_path) as owner:
        assert end in run(owner, tmp_path, action, limits)
        assert run(owner, tmp_path, "answer:next") == "next"


def test_a_job_that_compiles_is_alive_however_long_its_compiler_says_nothing(tmp_path: Path) -> None:
    """DeepSpeed's optimizer compiled for more than five minutes on a busy machine; its trial was ended."""
    compiled, said = tmp_path / "compiled", list[dict[str, Any]]()

    def tick(event: dict[str, Any] | None) -> None:
        said.extend([event] if event == {"compiling": True} else [])
        if len(said) > supervising.LOOKS:  # as long as a job may be silent, and more
            compiled.touch()

    limits = Limits(120, silence_seconds=4.0)
    with Supervisor([], tick, tmp_path / "server.txt", WORK) as owner:
        assert run(owner, tmp_path, f"compile:{compiled}", limits) == "compiled"


def test_the_server_has_one_thread_when_it_forks_though_it_has_imported_and_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # it really compiles
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # and tries no instructions of the CPU first
    heard = []
    ahead = ["numpy", "torch", "transformers", "bench.training.methods.compile:compile_something"]
    with Supervisor(ahead, heard.append, tmp_path / "server.txt", WORK) as owner:
        run(owner, tmp_path, "answer:first")
    assert [event["threads"] for event in heard if event and "threads" in event] == [1]


def test_garbage_collection_in_a_job_skips_preloaded_objects(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        assert run(owner, tmp_path, "collector") == "collects: True, ahead: False"


def test_a_job_over_its_memory_is_out_of_memory(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        end = run(owner, tmp_path, "grow:400", Limits(20, host_bytes=200 << 20))
    assert "out-of-memory: host" in end
    assert "200 MiB allowed" in end


def test_a_job_that_the_kernel_ends_for_memory_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.base.linux_processes.oom_kills", lambda: math.inf)
    with supervisor(tmp_path) as owner:
        assert "out-of-memory: host" in run(owner, tmp_path, "die:SIGKILL")
        assert "crashed: ended by SIGSEGV" in run(owner, tmp_path, "die:SIGSEGV")


def test_grandchildren_in_sessions_of_their_own_are_ended_too(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    with supervisor(tmp_path) as owner:
        run(owner, tmp_path, f"orphan:{note}", Limits(1.0))
        assert not any(alive(int(pid)) for pid in note.read_text().split())


def test_a_fork_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        run(owner, tmp_path, "answer:first")
        assert owner._server is not None
        owner._server.kill()
        owner._server.wait()
        assert run(owner, tmp_path, "answer:second") == "second"


def test_a_fork_server_that_is_killed_during_a_job_fails_only_that_job(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        killed = []

        def kill_once(event: object) -> None:
            if not killed and isinstance(event, dict) and event.get("phase") == "sleeping":
                assert owner._server is not None
                killed.append(owner._server.pid)
                owner._server.kill()

        owner.tick = kill_once
        assert "crashed: the process that starts trials was ended" in run(owner, tmp_path, "sleep:talking")
        assert run(owner, tmp_path, "answer:next") == "next"


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
DIES_ONCE = f"""
import pathlib, runpy, sys
if not (note := pathlib.Path(sys.argv[1])).exists():
    note.touch()
    {DIES}
del sys.argv[1]
runpy.run_module("bench.runner.processes.forkserver", run_name="__main__")
"""


def test_a_fork_server_that_is_killed_as_it_begins_is_started_again(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        owner.command = [sys.executable, "-c", DIES_ONCE, str(tmp_path / "note")]
        assert run(owner, tmp_path, "answer:after all") == "after all"


def test_a_fork_server_that_cannot_start_is_not_blamed_on_torch(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        owner.command = [sys.executable, "-c", DIES]
        with pytest.raises(EnvironmentCannot, match=r"was ended by SIGKILL as it began\n.* --resume goes"):
            owner.ceilings(["answer:"], "cpu", 1, tmp_path / "log.txt", Limits(20))
        owner.command = [sys.executable, "-c", "print('on its way'); raise ImportError"]
        assert run(owner, tmp_path, "answer:") == "torch could not be imported"
    log = (tmp_path / "server.txt").read_text()
    assert "on its way" in log and "ImportError" in log


def test_a_job_that_prints_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    with supervisor(tmp_path) as owner:
        # The limit of a log plus its first line: the log is cut only after more was written.
        assert run(owner, tmp_path, f"flood:{2 * MAX_MEMBER_BYTES >> 20}") == "cut"
    log = (tmp_path / "log.txt").read_bytes()
    assert log.startswith(b"first\nxxx")
    assert log.endswith(b"xxx\n[...]\nlast\n")


def test_a_job_that_is_killed_leaves_no_files_to_the_next(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (scratch / "bench-x").mkdir()
    (scratch / "bench-x/checkpoint.pt").touch()
    job = {"precisions": ["die:SIGKILL"], "scratch": str(scratch)}
    with supervisor(tmp_path) as owner:
        assert isinstance(owner.reading(job, tmp_path / "log.txt", Limits(20)), Crashed)
        assert list(scratch.iterdir()) == []
    assert not scratch.exists()


SCRIPT = """
import sys
from pathlib import Path
from bench.runner.processes.supervisor import Limits, Supervisor
folder = Path(sys.argv[1])
with Supervisor([], lambda event: None, folder / "server.txt", "tests.runner.fake_worker:work") as owner:
    owner.ceilings(["orphan:" + sys.argv[2]], "cpu", 1, folder / "log.txt", Limits(600))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_is_killed_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pids"
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(note)], stderr=subprocess.DEVNULL
    )
    assert eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
    worker, grandchild = map(int, note.read_text().split())
    server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(owner.pid, number)
    owner.wait(10)
    assert eventually(lambda: not any(map(alive, (server, worker, grandchild))))


def test_code_that_a_job_compiled_is_kept_unless_the_job_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it compiles leaves half a library, which torch would load later."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with supervisor(tmp_path) as owner:
        assert run(owner, tmp_path, "leave-code:a") == "found []"
        assert run(owner, tmp_path, "leave-code:b") == "found ['a.so']"
        assert "crashed" in run(owner, tmp_path, "leave-code:SIGKILL")
        assert run(owner, tmp_path, "leave-code:c") == "found []"
    with supervisor(tmp_path) as later:
        assert run(later, tmp_path, "leave-code:d") == "found ['c.so']"

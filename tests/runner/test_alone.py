"""Two runs on one machine warn about each other, unless they use different GPUs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.runner.machine import exclusive_use as module
from bench.runner.machine.exclusive_use import warn_of_others


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "PLACE", tmp_path)
    return tmp_path


def test_two_runs_on_one_gpu_both_warn() -> None:
    first: list[str] = []
    second: list[str] = []
    with warn_of_others(["GPU-a", "GPU-b"], first.append):
        assert first == []
        with warn_of_others(["GPU-b"], second.append):
            assert len(second) == 1
            assert "another bench measures on this machine since " in second[0]
    assert len(first) == 1
    assert "another bench began on this machine at " in first[0]
    assert len(second) == 1


def test_a_third_run_is_warned_of_the_second_after_the_first_ended() -> None:
    third: list[str] = []
    first = warn_of_others(["cpu"], lambda _: None)
    first.__enter__()
    with warn_of_others(["cpu"], lambda _: None):
        first.__exit__(None, None, None)
        with warn_of_others(["cpu"], third.append):
            assert len(third) == 1


def test_no_warning_for_other_gpus_or_later_runs_or_an_unwritable_lock(place: Path) -> None:
    said: list[str] = []
    with warn_of_others(["GPU-a"], said.append), warn_of_others(["GPU-b"], said.append):
        pass
    with warn_of_others(["GPU-a"], said.append):
        pass
    (place / "bench-measures-GPU-c").symlink_to("/etc/passwd")
    (place / "bench-measures-GPU-d").mkdir()
    with warn_of_others(["GPU-c", "GPU-d"], said.append), warn_of_others(["GPU-c", "GPU-d"], said.append):
        pass
    assert said == []


def test_each_run_sees_the_other_for_as_long_as_it_measures_and_two_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], strftime=time.strftime,
                                                        localtime=time.localtime))  # fmt: skip
    monkeypatch.setattr(module.threading, "Thread", lambda **_: SimpleNamespace(start=int, join=int))
    with warn_of_others(["GPU-a"], lambda _: None) as first:
        assert not first.seen()
        with warn_of_others(["GPU-a"], lambda _: None) as second:
            assert (first.seen(), second.seen()) == (True, True)
            for _ in range(5):  # trials that are shorter than a beat
                clock[0] += 0.3
                assert (first.seen(), second.seen()) == (True, True)
        first.beat()  # the last touch of the second
        clock[0] += 2.1
        first.seen()
        clock[0] += 2.1
        assert not first.seen()


def test_a_run_beats_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.001)
    with warn_of_others(["GPU-a"], lambda _: None) as one, warn_of_others(["GPU-a"], lambda _: None) as other:
        for run in (one, other, one, other):
            deadline = time.monotonic() + 30
            while not run.seen():
                assert time.monotonic() < deadline
                time.sleep(0.001)

"""Two runs on one machine: each is told of the other, whoever is on other GPUs is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.runner.machine import exclusive_use as module
from bench.runner.machine.exclusive_use import warn_of_others


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "PLACE", tmp_path)
    return tmp_path


def test_whoever_comes_and_whoever_was_there_are_told_of_each_other() -> None:
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


def test_a_third_is_told_of_the_second_when_the_first_is_gone() -> None:
    third: list[str] = []
    first = warn_of_others(["cpu"], lambda _: None)
    first.__enter__()
    with warn_of_others(["cpu"], lambda _: None):
        first.__exit__(None, None, None)
        with warn_of_others(["cpu"], third.append):
            assert len(third) == 1


def test_other_gpus_one_after_the_other_and_nowhere_to_write_are_no_matter(place: Path) -> None:
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

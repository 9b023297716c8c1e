"""Compiled code lies in a folder that one run has for itself, and that holds nothing half-made."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.runner.machine.disk_room import ADVICE
from bench.runner.processes.compiler_cache import VARIABLE, CompilerCache, take_cache


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def taken() -> CompilerCache:
    cache = take_cache()
    assert cache is not None
    return cache


def test_code_is_kept_for_the_next_run() -> None:
    first = taken()
    first.begin()
    (first.folder / "kernel.so").touch()
    first.end(whole=True)
    first.close()
    assert list(taken().folder.iterdir()) == [first.folder / "kernel.so"]


def test_two_runs_have_two_folders() -> None:
    first, second = taken(), taken()
    assert first.folder != second.folder
    first.close()
    assert taken().folder == first.folder


def test_code_of_a_job_that_was_cut_off_is_removed() -> None:
    cache = taken()
    cache.begin()
    (cache.folder / "half.so").touch()
    cache.end(whole=False)
    assert list(cache.folder.iterdir()) == []


def test_code_of_a_run_that_was_cut_off_is_removed_by_the_next_one() -> None:
    cache = taken()
    cache.begin()
    (cache.folder / "half.so").touch()
    cache.close()  # as the kernel does when the process ends
    assert list(taken().folder.iterdir()) == []


def test_only_its_user_can_read_or_write_the_folder(temporary: Path) -> None:
    cache = taken()
    assert cache.folder.parent.parent == temporary
    assert cache.folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("form", ["open", "link", "file"])
def test_a_folder_that_another_user_may_have_made_is_not_used(temporary: Path, form: str) -> None:
    name, other = temporary / f"bench-compiled-{os.getuid()}", temporary / "other"
    other.mkdir(mode=0o700)
    if form == "open":
        name.mkdir()
        name.chmod(0o777)
    elif form == "link":
        name.symlink_to(other)
    else:
        name.touch()
    cache = taken()
    folder = cache.folder
    assert name not in folder.parents
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert list(other.iterdir()) == []
    cache.begin()
    (folder / "kernel.so").touch()
    cache.end(whole=True)
    cache.close()
    assert {*temporary.iterdir()} == {name, other}  # a folder that no later run finds is removed


KILLED_RUN = """
import os, signal, tempfile
from bench.runner.processes.compiler_cache import take_cache
cache = take_cache()
cache.begin()
(cache.folder / "half.so").touch()
(cache.folder / "link").symlink_to(tempfile.gettempdir() + "/other")
os.kill(os.getpid(), signal.SIGKILL)
"""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_of_a_killed_run_is_removed_by_the_next_run_and_no_other(temporary: Path) -> None:
    lasting, other = temporary / f"bench-compiled-{os.getuid()}", temporary / "other"
    lasting.touch()  # so that each run makes a folder of its own
    other.mkdir(mode=0o700)
    for name in ("kept", "0.lock"):
        (other / name).touch()
    alive = taken()
    assert alive.folder.parent.name.startswith("bench-compiled-run-")
    (temporary / "bench-compiled-run-link").symlink_to(other)
    shutil.copytree(other, temporary / "bench-compiled-run-open").chmod(0o777)
    shutil.copytree(other, temporary / "bench-compiled-other")
    before = names_in(temporary)
    environment = os.environ | {"TMPDIR": str(temporary)}
    killed = subprocess.run([sys.executable, "-c", KILLED_RUN], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names_in(temporary)) == len(before) + 1
    taken().close()
    assert names_in(temporary) == before
    assert alive.folder.is_dir()
    assert names_in(other) == ["0.lock", "kept"]
    alive.close()


def test_a_folder_that_vanished_is_told(temporary: Path) -> None:
    """Programs that clean up temporary files remove folders of a run that takes days."""
    cache = taken()
    shutil.rmtree(cache.folder.parent)
    for note in (cache.begin, lambda: cache.end(whole=False)):
        with pytest.raises(EnvironmentCannot) as raised:
            note()
        error = raised.value
        assert error.message == f"compiled code cannot be kept: {os.strerror(errno.ENOENT)}"
        assert (error.where, error.advice) == (str(cache.folder), ADVICE)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    cache = taken()
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(EnvironmentCannot, match="compiled code cannot be kept: No space left on device"):
        cache.begin()


def test_a_folder_that_the_user_names_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/some/folder")
    assert take_cache() is None

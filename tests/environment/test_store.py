"""Environments on a node: whole or not there, known by their digest, and checked before they are used."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment import store
from bench.environment.identity import InstalledFile, environment_digest, tree_digest
from bench.environment.interpreter import this_interpreter
from bench.environment.store import StoredEnvironment
from tests.environment.made_wheels import make_wheel

PYTHON = this_interpreter()
DESCRIBED = {"variant": "cpu", "lock": "sha256:" + "1" * 64, "pins": "2" * 64, "without": ("flash-attn",)}


def wheels(tmp_path: Path) -> dict[str, Path]:
    return {
        "a": make_wheel(
            tmp_path / "w",
            "a",
            files={
                "a/__init__.py": b"from b import v\n",
                "a-1.0.data/scripts/tool": b"\x7fELF",
                "a-1.0.data/scripts/starter": b"#!python\n",
                "a-1.0.data/purelib/extra.py": b"x = 1\n",
                "a-1.0.data/headers/a.h": b"",
            },
        ),
        "b": make_wheel(tmp_path / "w", "b"),
    }


def make(place: Path, found: dict[str, Path]) -> StoredEnvironment:
    return store.make(place, found, {}, PYTHON, DESCRIBED, lambda count: None)


# --- what is made ---------------------------------------------------------------------------------------


def test_an_environment_has_the_files_of_its_wheels_and_no_other_package(place: Path, tmp_path: Path) -> None:
    made = make(place, wheels(tmp_path))
    folder = store.folder_of(place, made.digest)
    code = "import a, extra, sys; print(a.v, extra.x, sys.prefix); import pytest"
    done = subprocess.run([folder / "bin/python", "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["1.0", "1", str(folder)]
    assert "No module named 'pytest'" in done.stderr
    assert sorted(path.name for path in (folder / "bin").iterdir()) == ["python", "tool"]
    assert os.access(folder / "bin/tool", os.X_OK)
    assert not list(folder.rglob("a.h"))


def test_nothing_in_an_environment_can_be_written(place: Path, tmp_path: Path) -> None:
    folder = store.folder_of(place, make(place, wheels(tmp_path)).digest)
    for path in (folder, *folder.rglob("*")):
        assert path.is_symlink() or not path.stat().st_mode & 0o222, path


def test_the_digest_is_that_of_the_lock_the_python_and_the_files(place: Path, tmp_path: Path) -> None:
    made = make(place, wheels(tmp_path))
    assert made.digest == environment_digest(DESCRIBED["lock"], PYTHON.release, PYTHON.build, made.files)  # type: ignore[arg-type]
    folder = store.folder_of(place, made.digest)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert make(elsewhere, wheels(tmp_path)) == replace(
        made, stamp=store.read(next(elsewhere.iterdir())).stamp
    )
    store.remove(next(elsewhere.iterdir()))
    other = wheels(tmp_path) | {"b": make_wheel(tmp_path / "x", "b", files={"b/__init__.py": b"v = 2\n"})}
    assert make(place, other).digest != made.digest
    assert folder.exists()


def test_the_order_and_the_modes_of_files_decide_the_digest_of_a_tree() -> None:
    one, two = InstalledFile("a", "1" * 64, False), InstalledFile("b", "2" * 64, False)
    assert tree_digest([one, two]) == tree_digest([two, one])
    assert tree_digest([one]) != tree_digest([replace(one, executable=True)])


def test_a_file_that_two_wheels_have_is_that_of_the_last_by_name(place: Path, tmp_path: Path) -> None:
    found = {
        name: make_wheel(tmp_path / "w", name, files={"shared/__init__.py": f"v = {name!r}".encode()})
        for name in ("b", "a")
    }
    folder = store.folder_of(place, make(place, found).digest)
    assert (folder / f"lib/python{PYTHON.text}/site-packages/shared/__init__.py").read_text() == "v = 'b'"


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "a/../../outside.py", "a\\b.py"])
def test_a_wheel_with_a_file_outside_of_its_folder_is_refused(place: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(EnvironmentCannot, match="outside of its folder"):
        make(place, {"a": make_wheel(tmp_path / "w", "a", files={name: b""})})
    assert list(place.iterdir()) == []


def test_bytes_that_are_no_wheel_are_refused_and_leave_nothing(place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(EnvironmentCannot, match="is not a wheel"):
        make(place, {"a": tmp_path / "a.whl"})
    assert list(place.iterdir()) == []


# --- what is found --------------------------------------------------------------------------------------


def find(place: Path) -> StoredEnvironment | None:
    return store.find(place, "2" * 64, PYTHON)


def test_a_second_push_finds_what_the_first_one_made(place: Path, tmp_path: Path) -> None:
    assert find(place) is None
    assert make(place, wheels(tmp_path)) == find(place)
    assert store.find(place, "3" * 64, PYTHON) is None
    assert store.find(place, "2" * 64, replace(PYTHON, build="c" * 64)) is None
    assert store.find(place, "2" * 64, replace(PYTHON, release="3.11.99")) is None


def writable(path: Path) -> Path:
    for each in (path.parent, path):
        each.chmod(0o755)
    return path


def test_a_changed_an_added_and_a_removed_file_are_noticed(place: Path, tmp_path: Path) -> None:
    for change in ("changed", "added", "removed", "linked"):
        folder = store.folder_of(place, make(place, wheels(tmp_path)).digest)
        assert find(place) is not None
        module = writable(folder / f"lib/python{PYTHON.text}/site-packages/b/__init__.py")
        match change:
            case "changed":
                module.write_text("v = '9.9'\n")
            case "added":
                (module.parent / "more.py").write_text("")
            case "removed":
                module.unlink()
            case "linked":
                module.unlink()
                module.symlink_to("/etc/hostname")
        assert find(place) is None, change
        with pytest.raises(EnvironmentCannot, match="its files were changed"):
            store.require_unchanged(folder, PYTHON)


def test_an_environment_that_was_only_copied_is_hashed_again_and_accepted(
    place: Path, tmp_path: Path
) -> None:
    made = make(place, wheels(tmp_path))
    folder, copy = store.folder_of(place, made.digest), place / "copy"
    shutil.copytree(folder, copy, symlinks=True)
    store.remove(folder)
    copy.rename(folder)
    assert find(place) == made


def test_a_folder_under_another_digest_is_not_taken_for_that_one(place: Path, tmp_path: Path) -> None:
    folder = store.folder_of(place, make(place, wheels(tmp_path)).digest)
    folder.rename(place / ("f" * 64))
    assert find(place) is None


def test_a_changed_environment_is_replaced(place: Path, tmp_path: Path) -> None:
    made = make(place, wheels(tmp_path))
    module = store.folder_of(place, made.digest) / f"lib/python{PYTHON.text}/site-packages/b/__init__.py"
    writable(module).write_text("changed")
    assert make(place, wheels(tmp_path)).digest == made.digest
    assert find(place) is not None


# --- interrupted, and at the same time ------------------------------------------------------------------


def _die_in_the_middle(place: Path, found: dict[str, Path]) -> None:
    with store.one_at_a_time(place, lambda: None):
        store.make(place, found, {}, PYTHON, DESCRIBED, lambda count: os.kill(os.getpid(), signal.SIGKILL))


def test_a_killed_installation_leaves_nothing_that_is_taken_for_whole(place: Path, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_die_in_the_middle, args=(place, wheels(tmp_path))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [path.name[:5] for path in place.glob("[.]new*")] == [".new-"]
    assert find(place) is None
    with store.one_at_a_time(place, lambda: pytest.fail("the lock of a killed process is held")):
        assert not list(place.glob(".new*"))
        make(place, wheels(tmp_path))
    assert find(place) is not None


def _install(place: Path, found: dict[str, Path], said: multiprocessing.Queue[str]) -> None:
    with store.one_at_a_time(place, lambda: said.put("waits")):
        here = store.find(place, "2" * 64, PYTHON)
        said.put("finds" if here else "makes")
        if here is None:
            make(place, found)


def test_of_two_installations_at_once_one_makes_it_and_one_finds_it(place: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork would hold the lock of this process too
    said: multiprocessing.Queue[str] = context.Queue()
    found = wheels(tmp_path)
    processes = [context.Process(target=_install, args=(place, found, said)) for _ in range(2)]
    with store.one_at_a_time(place, lambda: None):  # until both are there
        for process in processes:
            process.start()
        assert [said.get(), said.get()] == ["waits", "waits"]
    for process in processes:
        process.join()
    assert sorted([said.get(), said.get()]) == ["finds", "makes"]
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(place.glob("[0-9a-f]*"))) == 1


def test_an_environment_is_made_by_this_python() -> None:
    assert PYTHON.version == sys.version_info[:2]
    assert PYTHON.executable == Path(sys.executable).resolve()
    assert len(PYTHON.build) == 64

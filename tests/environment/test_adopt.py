"""Packages that a Python of the node has already: taken if they have the very bytes of the locked wheels."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bench.environment import adopt, store
from bench.environment.contents import LockedPackage
from bench.environment.identity import tree_digest
from bench.environment.interpreter import this_interpreter
from bench.environment.unpack import wheel_contents
from tests.environment.made_wheels import make_wheel

PYTHON = this_interpreter()
DESCRIBED = {"variant": "cpu", "lock": "sha256:" + "1" * 64, "pins": "2" * 64, "without": ()}
FILES = {
    "a/__init__.py": b"v = 1\n",
    "a/lib/liba.so": b"\x7fELF" + bytes(100_000),
    "a/one, two.txt": b"a comma in a name",
    "a/vendored-1.dist-info/INSTALLER": b"pip\n",
    "a-1.0.data/scripts/tool": b"\x7fELF tool",
    "a-1.0.data/scripts/starter": b"#!python\nprint(1)\n",
    "a-1.0.data/data/share/man/a.1": b"manual",
    "a-1.0.data/headers/a.h": b"int a;",
    "a-1.0.data/purelib/extra.py": b"x = 1\n",
    "a-1.0.dist-info/entry_points.txt": b"[console_scripts]\nstart = a:main\n",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {
        "a": make_wheel(folder, "a", files=FILES, executable=("a/lib/liba.so",)),
        "b": make_wheel(folder, "b"),
    }


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of Python's own into which pip installed the wheels, with bytecode."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin/python"),
        "install",
        "--quiet",
        "--no-index",
    ]
    subprocess.run([*pip, "--no-deps", "--compile", *map(str, wheels.values())], check=True)
    return folder


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Path:
    """A copy of the environment, to be changed."""
    subprocess.run(["cp", "-a", installed, tmp_path / "venv"], check=True)
    return tmp_path / "venv"


def site(python: Path) -> Path:
    return python / f"lib/python{PYTHON.text}/site-packages"


def locked(wheels: Mapping[str, Path]) -> list[LockedPackage]:
    return [
        LockedPackage(name, "1.0", frozenset(), frozenset({tree_digest(wheel_contents(wheel))}))
        for name, wheel in wheels.items()
    ]


def found(python: Path, wheels: Mapping[str, Path]) -> tuple[dict[str, adopt.HeldPackage], dict[str, str]]:
    return adopt.find(locked(wheels), adopt.folders_of_packages(f"{python}/bin"))


def copied(python: Path, wheels: Mapping[str, Path], folder: Path) -> tuple[set[str], dict[str, str]]:
    held, differing = found(python, wheels)
    whole, changed = adopt.copy_all(held, locked(wheels), folder, lambda count: None)
    return {*whole}, differing | changed


# --- the same environment -------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [{"a", "b"}, {"a"}, {"b"}])
def test_the_environment_is_the_same_from_wheels_and_from_what_pip_installed(
    python: Path, wheels: dict[str, Path], place: Path, taken: set[str]
) -> None:
    held, _ = found(python, wheels)
    assert {*held} == {"a", "b"}
    with store.scratch(place) as folder:
        whole, changed = adopt.copy_all(held, locked(wheels), folder, lambda count: None)
        assert not changed
        others = {name: wheel for name, wheel in wheels.items() if name not in taken}
        kept = {name: package for name, package in whole.items() if name in taken}
        adopted = store.make(place, others, kept, PYTHON, DESCRIBED, lambda count: None)
    made = store.folder_of(place, adopted.digest)
    files = {path.relative_to(made): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert files[Path("share/man/a.1")] == b"manual"
    assert Path("bin/tool") in files and Path("bin/starter") not in files and Path("bin/start") not in files
    store.remove(made)
    unpacked = store.make(place, wheels, {}, PYTHON, DESCRIBED, lambda count: None)
    assert adopted.digest == unpacked.digest
    again = store.folder_of(place, unpacked.digest)
    assert {path: data for path, data in files.items() if path.name != store.DESCRIPTION} == {
        path.relative_to(again): path.read_bytes()
        for path in again.rglob("*")
        if path.is_file() and path.name != store.DESCRIPTION
    }


def test_the_files_are_copies_that_later_changes_do_not_reach(
    python: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    assert copied(python, wheels, tmp_path)[0] == {"a", "b"}
    copy, original = tmp_path / "a/site-packages/a/lib/liba.so", site(python) / "a/lib/liba.so"
    with original.open("r+b") as file:
        file.write(b"changed")
    assert copy.read_bytes() == FILES["a/lib/liba.so"]
    assert copy.stat().st_nlink == 1 and not copy.is_symlink()


def test_a_file_system_that_cannot_copy_ranges_gets_the_same_bytes(
    python: Path, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", cannot)
    assert copied(python, wheels, tmp_path) == ({"a", "b"}, {})


def test_the_record_of_an_environment_lists_what_is_there(wheels: dict[str, Path], place: Path) -> None:
    made = store.make(place, wheels, {}, PYTHON, DESCRIBED, lambda count: None)
    code = "from importlib.metadata import files; print(*(x.locate().exists() for x in files('a')))"
    program = store.folder_of(place, made.digest) / "bin/python"
    done = subprocess.run([program, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 11


# --- what is not taken ----------------------------------------------------------------------------------


def in_record(python: Path, old: str, new: str) -> None:
    path = site(python) / "a-1.0.dist-info/RECORD"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def replaced(path: Path, put: Callable[[Path], object]) -> None:
    path.unlink()
    put(path)


def renamed(python: Path) -> None:
    (site(python) / "a-1.0.dist-info").rename(site(python) / "a-1.1.dist-info")


def linked_folder(python: Path) -> None:
    folder = site(python) / "a/lib"
    folder.rename(python / "elsewhere")
    folder.symlink_to(python / "elsewhere")


def put(path: Path, data: bytes) -> None:
    """Write other bytes into a file, whose modes stay."""
    path.write_bytes(data)


MODULE, LIBRARY, RECORD = "a/__init__.py", "a/lib/liba.so", "a-1.0.dist-info/RECORD"
OTHER_FILES = "its RECORD lists other files than the locked wheel's"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (renamed, "1.1 is installed"),
        (lambda p: (site(p) / RECORD).unlink(), "RECORD is missing"),
        (lambda p: (site(p) / MODULE).unlink(), "__init__.py is missing"),
        (lambda p: put(site(p) / RECORD, b"\xff\xfe"), "its RECORD cannot be used"),
        (lambda p: in_record(p, "a/__init__.py,sha256=", "a/__init__.py,sha256=x"), OTHER_FILES),
        (lambda p: in_record(p, "__init__.py,sha256=", "__init__.py,md5="), "a/__init__.py has no sha256"),
        (lambda p: in_record(p, "a/__init__.py", "../../../../etc/passwd"), "is outside"),
        (lambda p: in_record(p, "a/__init__.py", "/etc/passwd"), "is outside"),
        (lambda p: in_record(p, "a/__init__.py", "extra.py"), OTHER_FILES),
        (lambda p: (site(p) / MODULE).chmod(0o755), OTHER_FILES),
        (lambda p: put(site(p) / MODULE, b"v = 22\n"), "a/__init__.py was changed"),
        (lambda p: replaced(site(p) / MODULE, lambda path: path.symlink_to("b")), "is not a regular file"),
        (lambda p: replaced(site(p) / MODULE, os.mkfifo), "is not a regular file"),
        (lambda p: replaced(p / "bin/tool", os.mkfifo), "is not a regular file"),
        (lambda p: replaced(site(p) / RECORD, os.mkfifo), "RECORD"),
    ],
)  # fmt: skip
def test_a_package_that_is_not_the_wheels_is_left_in_the_plan_and_the_reason_is_said(
    python: Path, wheels: dict[str, Path], change: Callable[[Path], object], why: str
) -> None:
    change(python)
    held, differing = found(python, wheels)
    assert ({*held}, {*differing}) == ({"b"}, {"a"})
    assert why in differing["a"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: put(site(p) / MODULE, b"v = 2\n"), "a/__init__.py was changed"),  # of the same size
        (lambda p: put(site(p) / LIBRARY, bytes(100_000)), "a/lib/liba.so: is another file than before"),
        (lambda p: (site(p) / LIBRARY).chmod(0o644), "a/lib/liba.so was changed"),
        (lambda p: (site(p) / LIBRARY).unlink(), "a/lib/liba.so: No such file"),
        (lambda p: replaced(site(p) / MODULE, lambda path: path.symlink_to("b")), "a/__init__.py: "),
        (linked_folder, "a/lib/liba.so: Not a directory"),
        (lambda p: replaced(site(p) / MODULE, os.mkfifo), "a/__init__.py: is another file than before"),
    ],
)  # fmt: skip
def test_a_package_that_changes_after_the_plan_is_not_copied(
    python: Path, wheels: dict[str, Path], tmp_path: Path, change: Callable[[Path], object], why: str
) -> None:
    held, _ = found(python, wheels)
    change(python)
    whole, changed = adopt.copy_all(held, locked(wheels), tmp_path, lambda count: None)
    assert ({*whole}, {*changed}) == ({"b"}, {"a"})
    assert changed["a"].startswith(f"lib/python{PYTHON.text}/site-packages/{why}")


def test_of_two_pythons_the_one_with_the_locked_files_is_used(
    python: Path, installed: Path, wheels: dict[str, Path]
) -> None:
    (site(python) / "a-1.0.dist-info/RECORD").unlink()
    folders = adopt.folders_of_packages(f"{python}/bin:{installed}/bin:relative/bin")
    held, differing = adopt.find(locked(wheels), folders)
    assert (held["a"].root, held["b"].root, differing) == (installed, installed, {})


def test_a_package_whose_contents_are_not_known_is_not_looked_for(python: Path) -> None:
    folders = adopt.folders_of_packages(f"{python}/bin")
    assert adopt.find([LockedPackage("a", "1.0", frozenset({"3" * 64}))], folders) == ({}, {})


def test_debians_folder_and_that_of_the_running_python_are_looked_into(tmp_path: Path) -> None:
    debian = tmp_path / "usr/lib/python3/dist-packages"
    debian.mkdir(parents=True)
    folders = adopt.folders_of_packages(f"{tmp_path}/usr/bin")
    assert debian in folders
    assert any(f"{Path(sys.prefix).resolve()}" in str(each) for each in folders)

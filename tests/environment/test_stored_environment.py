"""One environment in its folder: what is written there, what counts as a change, and what is left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment import store
from bench.environment.identity import InstalledFile
from bench.environment.store import PUSH_AGAIN, StoredEnvironment
from tests.environment.made_wheels import PYTHON, make_wheel

DESCRIBED = {"variant": "cpu", "lock": "sha256:" + "1" * 64, "pins": "2" * 64, "without": ("flash-attn",)}
SITE = "lib/python3.11/site-packages"
MODULE = f"{SITE}/a/environment.json"  # named as the description, which lies in another folder


def made(place: Path, tmp_path: Path, **files: bytes) -> StoredEnvironment:
    wheel = make_wheel(tmp_path / "w", "a", files={"a/environment.json": b"{}", "a/pyvenv.cfg": b""} | files)
    return store.make(place, {"a": wheel}, {}, PYTHON, DESCRIBED, lambda count: None)


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Path:
    """The folder of an environment of one small wheel."""
    return store.folder_of(place, made(place, tmp_path).digest)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Make a file or folder and its parent writable, and give their modes back afterwards."""
    before = [(each, mode(each)) for each in (path.parent, path) if each.exists()]
    for each, old in before:
        each.chmod(old | 0o200)
    yield path
    for each, old in before:
        if each.exists():
            each.chmod(old)


# --- what is written --------------------------------------------------------------------------------------


def test_an_environment_is_one_of_pythons_own_with_its_description(folder: Path) -> None:
    assert (folder / "bin/python").readlink() == PYTHON.executable
    assert (folder / "pyvenv.cfg").read_text() == (
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n"
    )
    found = store.read(folder)
    text = (folder / "environment.json").read_text()
    assert json.loads(text) == asdict(found) | {"without": ["flash-attn"]}
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1)
    assert (found.variant, found.lock, found.pins) == ("cpu", "sha256:" + "1" * 64, "2" * 64)
    assert (found.python, found.build, found.without) == ("3.11.2", "b" * 64, ("flash-attn",))
    assert folder.name == found.digest.removeprefix("sha256:")


def test_files_are_read_only_and_folders_too(folder: Path) -> None:
    modes = {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}
    del modes["bin/python"]  # a link
    folders = {name for name in modes if (folder / name).is_dir()}
    assert {name: modes[name] for name in folders} == dict.fromkeys(folders, 0o555)
    assert {modes[name] for name in modes.keys() - folders} == {0o444}
    assert mode(folder) == 0o555
    assert {"bin", "lib", "lib/python3.11", SITE, f"{SITE}/a"} <= folders


def test_nothing_but_the_environment_is_left(folder: Path, place: Path) -> None:
    assert list(place.iterdir()) == [folder]


def test_an_environment_that_is_made_again_takes_the_place_of_the_one_there(
    folder: Path, place: Path, tmp_path: Path
) -> None:
    with opened(folder / "more") as more:
        more.write_text("")
    assert store.folder_of(place, made(place, tmp_path).digest) == folder
    assert not more.exists()
    assert list(place.iterdir()) == [folder]


def test_a_failure_leaves_nothing_and_says_where(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_stamp", full)
    with pytest.raises(EnvironmentCannot) as failed:
        made(place, tmp_path)
    assert failed.value.message == "the environment cannot be written: No space left on device"
    assert failed.value.where == str(place)
    assert list(place.iterdir()) == []


def test_a_folder_for_copies_lies_beside_environments_and_is_deleted(place: Path) -> None:
    with store.scratch(place) as one:
        assert one.parent == place and one.name.startswith(".new-")
        (one / "deep/er").mkdir(parents=True)
        (one / "deep/er/file").write_text("")
        (one / "deep/er").chmod(0o500)
        (one / "deep").chmod(0o500)
    with pytest.raises(KeyError), store.scratch(place) as two:
        raise KeyError
    assert not one.exists() and not two.exists()


def test_folders_can_be_written_before_they_are_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the superuser could delete what lies in folders that are read-only."""
    modes: list[set[int]] = []

    def rmtree(path: Path, ignore_errors: bool) -> None:
        assert ignore_errors
        modes.append({mode(each) for each in (path, *path.rglob("*")) if each.is_dir()})

    with monkeypatch.context() as patched:
        patched.setattr(store.shutil, "rmtree", rmtree)
        store.remove(folder)
    assert modes == [{0o700}]


def test_deleting_what_is_not_there_is_no_error(place: Path) -> None:
    store.remove(place / "nothing")


# --- what is found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, "FileNotFoundError"),
        (b"{", "JSONDecodeError"),
        (b"[]", "TypeError"),
        (b"{}", "KeyError"),
        (b'{"without": 1}', "TypeError"),
        (b'{"without": []}', "TypeError"),
    ],
)
def test_a_folder_that_is_no_environment_is_named(place: Path, data: bytes | None, error: str) -> None:
    folder = place / "abc"
    folder.mkdir()
    if data is not None:
        (folder / "environment.json").write_bytes(data)
    with pytest.raises(EnvironmentCannot) as refused:
        store.read(folder)
    assert refused.value.message == f"is not an environment: {error}"
    assert (refused.value.where, refused.value.advice) == (str(folder), PUSH_AGAIN)


def test_a_folder_that_is_no_environment_does_not_hide_another(folder: Path, place: Path) -> None:
    (place / "0").mkdir()
    found = store.find(place, "2" * 64, PYTHON)
    assert found == store.read(folder) == store.require_unchanged(folder, PYTHON)


@pytest.mark.parametrize("field", ["python", "build"])
def test_an_environment_of_another_python_is_refused(folder: Path, field: str) -> None:
    description = folder / "environment.json"
    document = json.loads(description.read_bytes()) | {field: "another"}
    with opened(description):
        description.write_text(json.dumps(document))
    with pytest.raises(EnvironmentCannot) as refused:
        store.require_unchanged(folder, PYTHON)
    assert refused.value.message == f"it is for another Python {document['python']}"
    assert (refused.value.where, refused.value.advice) == (str(folder), PUSH_AGAIN)


def test_an_untouched_environment_is_not_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments have thousands of files, and each run begins with this check."""
    monkeypatch.delattr(store, "_hashed")
    store.require_unchanged(folder, PYTHON)
    with opened(folder / "environment.json") as description:
        description.touch()  # where the stamp is kept, which therefore is not over this file
    store.require_unchanged(folder, PYTHON)


def changed(path: Path) -> None:
    path.write_bytes(b"[]")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def executable(path: Path) -> None:
    path.chmod(0o555)


def removed(path: Path) -> None:
    path.unlink()


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("change", "accepted"),
    [(changed, False), (touched, True), (executable, False), (removed, False), (linked, False)],
)
def test_a_change_of_a_file_is_noticed_unless_its_bytes_are_the_same(
    folder: Path, change: Any, accepted: bool
) -> None:
    stamp = store._stamp(folder)
    path = folder / MODULE
    path.chmod(0o644)
    if change in (removed, linked):
        path.parent.chmod(0o755)
    change(path)
    if change in (changed, touched):
        path.chmod(0o444)
    assert store._stamp(folder) != stamp
    if accepted:
        store.require_unchanged(folder, PYTHON)
        return
    with pytest.raises(EnvironmentCannot, match="its files were changed") as refused:
        store.require_unchanged(folder, PYTHON)
    assert (refused.value.where, refused.value.advice) == (str(folder), PUSH_AGAIN)


@pytest.mark.parametrize("name", [f"{SITE}/b/environment.json", f"{SITE}/pyvenv.cfg", "lib/bin/python"])
def test_a_file_named_as_one_of_the_environments_own_is_noticed_elsewhere(folder: Path, name: str) -> None:
    (folder / SITE).chmod(0o755)
    (folder / "lib").chmod(0o755)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(EnvironmentCannot, match="its files were changed"):
        store.require_unchanged(folder, PYTHON)


def linked_package(folder: Path) -> None:
    """Link a package from elsewhere, which Python would import as it starts."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    (folder / SITE / "sitecustomize").symlink_to(elsewhere)


def empty_package(folder: Path) -> None:
    """Libraries look whether flash_attn can be found, and an empty folder can."""
    (folder / SITE / "flash_attn").mkdir()


def pipe(folder: Path) -> None:
    """Put a pipe into the folder of packages: nobody writes into it, so that reading it would never end."""
    os.mkfifo(folder / SITE / "a.pth")


@pytest.mark.parametrize("change", [linked_package, empty_package, pipe])
def test_whatever_python_could_import_counts(folder: Path, change: Any) -> None:
    folder.chmod(0o755)
    (folder / SITE).chmod(0o755)
    change(folder)
    with pytest.raises(EnvironmentCannot, match="its files were changed"):
        store.require_unchanged(folder, PYTHON)


def other_python(folder: Path) -> None:
    (folder / "bin").chmod(0o755)
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to("/usr/bin/python3.12")


def no_python(folder: Path) -> None:
    (folder / "bin").chmod(0o755)
    (folder / "bin/python").unlink()


def other_packages(folder: Path) -> None:
    path = folder / "pyvenv.cfg"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("false", "true"))


def linked_configuration(folder: Path) -> None:
    """Put a link in place of pyvenv.cfg, whose text could be changed later, outside of the environment."""
    folder.chmod(0o755)
    (folder / "pyvenv.cfg").rename(folder.parent / "pyvenv.cfg")
    (folder / "pyvenv.cfg").symlink_to(folder.parent / "pyvenv.cfg")


def no_text(folder: Path) -> None:
    (folder / "pyvenv.cfg").chmod(0o644)
    (folder / "pyvenv.cfg").write_bytes(b"\xff")


@pytest.mark.parametrize("change", [other_python, no_python, other_packages, linked_configuration, no_text])
def test_an_environment_that_starts_otherwise_is_refused(folder: Path, change: Any) -> None:
    """A run would have the packages of the node's own Python, or of another one."""
    stamp = store._stamp(folder)
    change(folder)
    assert store._stamp(folder) != stamp
    with pytest.raises(EnvironmentCannot, match="its files were changed"):
        store.require_unchanged(folder, PYTHON)


def test_a_link_is_known_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "program").write_bytes(b"")
    (tmp_path / "program").chmod(0o100)
    assert store._hash(tmp_path / "link", tmp_path) == InstalledFile("link", "a link to /etc/hostname", False)
    assert store._hash(tmp_path / "program", tmp_path).executable


def test_installations_wait_only_for_one_that_is_at_work(tmp_path: Path) -> None:
    environments = tmp_path / "deep" / "environments"
    with store.one_at_a_time(environments, lambda: pytest.fail("nobody is at work")):
        assert (environments / ".lock").exists()
        (environments / ".new-stale").mkdir()
    (environments / "0123").mkdir()
    with store.one_at_a_time(environments, lambda: pytest.fail("nobody is at work")):
        assert sorted(path.name for path in environments.iterdir()) == [".lock", "0123"]

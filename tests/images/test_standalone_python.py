"""The Python that is brought to a node: made of locked Debian packages, and startable where it lies."""

from __future__ import annotations

import dataclasses
import subprocess
import tarfile
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.environment.interpreter import BUNDLED
from bench.images.debian_packages import Deb, read_debs
from bench.images.standalone_python import destination, make_python, needed_packages
from bench.images.variants import images
from bench.packages import download
from bench.push import ship
from bench.push.remote import Here
from bench.push.shared_place import PlaceClaim, claimed
from tests.environment.made_wheels import sha256_of
from tests.images.odd_packages import make_deb

ROOT = Path(__file__).parents[2]
# A program that starts as Python does, if its libraries are found.
STARTS = b'#!/bin/sh\n[ -e "$LD_LIBRARY_PATH/libz.so.1.2" ] || { echo no zlib >&2; exit 1; }\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A made-up repository and the mirror of its lock: one package has all files, the others none."""
    files = {
        "usr/bin/python3.11": STARTS,
        "usr/lib/python3.11/os.py": b"os",
        "usr/lib/python3.11/test/test_os.py": b"left out",
        "usr/lib/x86_64-linux-gnu/libz.so.1.2": b"zlib",
        "usr/share/doc/python3.11-minimal/copyright": b"PSF",
    }
    pool = tmp_path / "mirror/pool/main"
    made = []
    for deb in needed_packages(locked(), "3.11"):
        path = (pool / deb.path).with_name(f"{deb.name}_1.0_amd64.deb")
        path.parent.mkdir(parents=True, exist_ok=True)
        make_deb(path.parent, deb.name, files if deb.name == "python3.11-minimal" else {}, {})
        made.append(Deb(deb.name, "1:1.0", sha256_of(path), path.relative_to(pool).as_posix()))
    (tmp_path / "docker").mkdir()
    lines = [deb.line for deb in [Deb("bash", "5.2", "a" * 64, "b/bash/bash_5.2_amd64.deb"), *made]]
    (tmp_path / "docker/debian.lock").write_text("\n".join(lines))
    return tmp_path


def locked() -> tuple[Deb, ...]:
    return read_debs(ROOT / "docker/debian.lock")


def mirror(source: Path) -> str:
    return f"file://{source}/mirror"


def test_the_lock_names_every_package_of_the_python() -> None:
    names = [deb.name for deb in needed_packages(locked(), images().python)]
    assert names == sorted(names) and len(names) == 11
    assert {"libexpat1", "libffi8", "libpython3.11-stdlib", "python3.11-minimal", "zlib1g"} <= set(names)
    with pytest.raises(BadInput, match=r"does not name libbz2-1\.0"):
        needed_packages([], "3.11")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("usr/bin/python3.11", "bin/python3.11"),
        ("usr/bin/python3.11-config", None),
        ("usr/lib/python3.11/json/decoder.py", "lib/python3.11/json/decoder.py"),
        ("usr/lib/python3.11/config-3.11-x86_64-linux-gnu/libpython3.11.a", None),
        ("usr/lib/python3.11/sitecustomize.py", None),
        ("usr/include/python3.11/Python.h", "include/python3.11/Python.h"),
        ("usr/include/x86_64-linux-gnu/python3.11/pyconfig.h",
         "include/python3.11/x86_64-linux-gnu/python3.11/pyconfig.h"),
        ("lib/x86_64-linux-gnu/libz.so.1", f"{BUNDLED}/libz.so.1"),
        ("usr/lib/x86_64-linux-gnu/libffi.so.8.1.2", f"{BUNDLED}/libffi.so.8.1.2"),
        ("usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", None),
        ("usr/lib/x86_64-linux-gnu/engines-3/padlock.so", None),
        ("usr/share/doc/zlib1g/copyright", "share/doc/zlib1g/copyright"),
        ("usr/share/doc/zlib1g/changelog.gz", None),
        ("etc/python3.11/sitecustomize.py", None),
    ],
)  # fmt: skip
def test_files_are_where_python_finds_them_in_any_folder(path: str, place: str | None) -> None:
    assert destination(path, "3.11") == place


def test_the_same_lock_gives_the_same_bytes_and_is_made_once(source: Path) -> None:
    first = make_python(source, mirror(source), source / "first")
    again = make_python(source, mirror(source), source / "again")
    assert first.path.read_bytes() == again.path.read_bytes()
    assert first.path.name == f"{first.digest}.tar.gz"
    assert [path.name for path in (source / "first").iterdir()] == [first.path.name]
    assert make_python(source, "file:///no/mirror", source / "first") == first
    with tarfile.open(first.path) as archive:
        modes = {entry.name: (entry.mode, entry.mtime, entry.uid) for entry in archive}
    assert modes == {
        "bin/python3.11": (0o444, 0, 0),  # as in the made-up package, where nothing is executable
        "lib/bundled/libz.so.1.2": (0o444, 0, 0),
        "lib/python3.11/os.py": (0o444, 0, 0),
        "share/doc/python3.11-minimal/copyright": (0o444, 0, 0),
    }


def test_a_package_with_other_bytes_is_refused_and_nothing_is_made(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE_SECONDS", 0.0)
    (package,) = (source / "mirror").rglob("libexpat1*.deb")
    package.write_bytes(package.read_bytes() + b"more")
    with pytest.raises(EnvironmentCannot, match=r"Debian's package libexpat1_1\.0_amd64\.deb: ") as refused:
        make_python(source, mirror(source), source / "made")
    assert "--mirror URL" in str(refused.value.advice)
    assert list((source / "made").iterdir()) == []


def test_a_folder_without_the_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no docker/debian\.lock"):
        make_python(tmp_path, "", tmp_path)


# --- on the node ------------------------------------------------------------------------------------------


def test_it_is_sent_once_and_gets_its_name_when_it_has_started(source: Path, tmp_path: Path) -> None:
    place, python = str(tmp_path / "my place"), make_python(source, mirror(source), source / "made")
    python = dataclasses.replace(python, path=executable(python.path))
    told: list[tuple[int, int]] = []
    with claimed(Here(), PlaceClaim(place, "1")) as node:
        size = ship.ship_python(node, python, lambda done, total: told.append((done, total)))
        assert ship.ship_python(node, python, lambda done, total: None) == 0
    assert size == python.path.stat().st_size
    assert (told[0], told[-1]) == ((0, size), (size, size))
    program = f"{python.folder(place)}/bin/python3.11"
    libraries = {"LD_LIBRARY_PATH": ship.libraries_of(python, place)}
    assert subprocess.run([program], env=libraries, check=False).returncode == 0
    assert [path.name for path in (Path(place) / "pythons").iterdir()] == [python.digest]


def test_one_that_does_not_start_there_is_deleted_and_the_reason_said(source: Path, tmp_path: Path) -> None:
    place, python = str(tmp_path / "p"), make_python(source, mirror(source), source / "made")
    with (
        claimed(Here(), PlaceClaim(place, "1")) as node,
        pytest.raises(EnvironmentCannot, match=r"does not start there: .*Permission denied") as refused,
    ):
        ship.ship_python(node, python, lambda done, total: None)
    assert "install Python 3.11 on the node" in str(refused.value.advice)
    assert list((Path(place) / "pythons").iterdir()) == []


def executable(path: Path) -> Path:
    """Return a copy of a .tar.gz in which every file may be executed."""
    made = path.with_name("executable.tar.gz")
    with tarfile.open(path) as old, tarfile.open(made, "w:gz") as new:
        for entry in old:
            entry.mode = 0o555
            new.addfile(entry, old.extractfile(entry))
    return made

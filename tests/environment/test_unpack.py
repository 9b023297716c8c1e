"""The files of wheels in an environment: which of them, where, with which modes and which digests."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment.contents import record
from bench.environment.identity import InstalledFile
from bench.environment.unpack import (
    CopiedPackage,
    _parts,
    destination,
    unpack,
    unpacked_bytes,
    wheel_contents,
)

SITE = "lib/python3.11/site-packages"
METADATA = "a-1.0.dist-info/METADATA"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(path: Path, files: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> Path:
    """Write a wheel with these files, in their order; a name that ends with a slash is a folder."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = (0o100644 if modes is None else modes.get(name, 0o100644)) << 16
            archive.writestr(info, data)
    return path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b.py", f"{SITE}/a/b.py"),
        ("b.py", f"{SITE}/b.py"),
        ("a-1.0.data/purelib/a/b.py", f"{SITE}/a/b.py"),
        ("a-1.0.data/platlib/b.so", f"{SITE}/b.so"),
        ("a-1.0.data/scripts/tool", "bin/tool"),
        ("a-1.0.data/data/share/man/a.1", "share/man/a.1"),
        ("a-1.0.data/headers/a.h", None),
        ("a-1.0.data/of-a-later-kind/a", None),
        ("a-1.0.data/scripts", f"{SITE}/a-1.0.data/scripts"),  # a file, and in no folder of that kind
        ("a/a-1.0.data/scripts/tool", f"{SITE}/a/a-1.0.data/scripts/tool"),
        ("a/..b", f"{SITE}/a/..b"),
    ],
)
def test_the_place_of_a_wheels_file(name: str, path: str | None) -> None:
    assert destination(name, SITE) == path


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "..", "../a", "a/../../b", "a-1.0.data/data/../a", "a\\b", "", "."]
)
def test_a_file_outside_of_its_wheel_is_refused(name: str) -> None:
    with pytest.raises(EnvironmentCannot, match="a wheel has a file outside of its folder: "):
        destination(name, SITE)


FILES = {
    "a/": b"",
    "a/__init__.py": b"v = 1\n",
    "a/__pycache__/b.cpython-311.pyc": b"bytecode",
    "a/vendored-1.dist-info/RECORD": b"of a package inside",
    "a-1.0.data/scripts/tool": b"\x7fELF",
    "a-1.0.data/scripts/starter": b"#!python\n",
    "a-1.0.data/data/share/starter": b"#!python\n",
    "a-1.0.data/headers/a.h": b"int a;",
    METADATA: b"Name: a\n",
    "a-1.0.dist-info/RECORD": b"of the wheel",
}
HELD = {
    "site-packages/a/__init__.py": b"v = 1\n",
    "site-packages/a/vendored-1.dist-info/RECORD": b"of a package inside",
    "bin/tool": b"\x7fELF",
    "share/starter": b"#!python\n",
    f"site-packages/{METADATA}": b"Name: a\n",
}


def contents(held: Mapping[str, bytes] = HELD) -> list[InstalledFile]:
    return [InstalledFile(path, sha256(data), path.startswith("bin/")) for path, data in held.items()]


def test_the_contents_of_a_wheel_are_what_an_environment_has_of_it(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", FILES)
    assert wheel_contents(path) == contents()
    assert unpacked_bytes({"a": path, "b": path}) == 2 * sum(map(len, FILES.values()))


@pytest.mark.parametrize(
    ("mode", "executable"), [(0o644, False), (0o100, True), (0o010, True), (0o001, True), (0o666, False)]
)
def test_a_file_that_anybody_may_execute_is_executable(tmp_path: Path, mode: int, executable: bool) -> None:
    path = wheel(tmp_path / "a.whl", {"a.py": b""}, {"a.py": 0o100000 | mode})
    (file,) = wheel_contents(path)
    assert file.executable == executable
    (made,) = unpack({"a": path}, {}, SITE, tmp_path / "new", lambda count: None)
    assert made == InstalledFile(f"{SITE}/a.py", sha256(b""), executable)
    assert (tmp_path / "new" / made.path).stat().st_mode & 0o777 == (0o555 if executable else 0o444)


def test_an_environment_has_the_files_and_a_record_of_each_package(tmp_path: Path) -> None:
    path, new, written = wheel(tmp_path / "a.whl", FILES), tmp_path / "new", list[int]()
    lock = threading.Lock()

    def advance(count: int) -> None:
        with lock:
            written.append(count)

    files = unpack({"a": path}, {}, SITE, new, advance)
    own = [
        InstalledFile(f.path.replace("site-packages/", f"{SITE}/", 1), f.sha256, f.executable)
        for f in contents()
    ]
    listed = record(own, SITE, f"{SITE}/a-1.0.dist-info/RECORD")
    there = InstalledFile(f"{SITE}/a-1.0.dist-info/RECORD", sha256(listed), executable=False)
    assert sorted(files) == sorted([*own, there])
    assert {file.path: sha256((new / file.path).read_bytes()) for file in files} == {
        file.path: file.sha256 for file in files
    }
    assert (new / there.path).stat().st_mode & 0o777 == 0o444
    assert sorted(written) == sorted(map(len, HELD.values()))


def copied(folder: Path, held: Mapping[str, bytes]) -> CopiedPackage:
    for path, data in held.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return CopiedPackage(folder, tuple(contents(held)))


def test_a_package_is_the_same_from_its_wheel_and_from_copies(tmp_path: Path) -> None:
    path, copy = wheel(tmp_path / "a.whl", FILES), copied(tmp_path / "copy", HELD)
    one = unpack({"a": path}, {}, SITE, tmp_path / "one", lambda count: None)
    two = unpack({"a": path}, {"a": copy}, SITE, tmp_path / "two", lambda count: pytest.fail("unpacked"))
    assert sorted(one) == sorted(two)
    assert not [each for each in (tmp_path / "copy").rglob("*") if each.is_file()]  # they were moved
    assert all(sha256((tmp_path / "two" / file.path).read_bytes()) == file.sha256 for file in two)


def test_a_shared_file_is_that_of_the_last_package_by_name(tmp_path: Path) -> None:
    files_of = lambda name: {"shared.py": name.encode(), f"{name}-1.dist-info/METADATA": b""}  # noqa: E731
    wheels = {name: wheel(tmp_path / f"{name}.whl", files_of(name)) for name in ("b", "a")}
    copy = {"c": copied(tmp_path / "copy", {"site-packages/shared.py": b"c"})}
    for copies, owner in (({}, "b"), (copy, "c")):
        new = tmp_path / owner
        files = unpack(wheels, copies, SITE, new, lambda count: None)
        assert (new / SITE / "shared.py").read_bytes() == owner.encode()
        assert [f.sha256 for f in files if f.path.endswith("shared.py")] == [sha256(owner.encode())]
        lists = (new / SITE / "a-1.dist-info/RECORD").read_text()
        assert "shared" not in lists and lists.count("\n") == 2


def test_files_without_metadata_get_no_record(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"a.py": b"", "a/b-1.dist-info/METADATA": b"of a package inside"})
    files = unpack({"a": path}, {}, SITE, tmp_path / "new", lambda count: None)
    assert sorted(file.path for file in files) == [f"{SITE}/a.py", f"{SITE}/a/b-1.dist-info/METADATA"]


@pytest.mark.parametrize(
    ("count", "parts"), [(1, 1), (63, 1), (64, 2), (128, 3), (447, 7), (448, 8), (900, 8)]
)
def test_a_large_wheel_is_divided_into_parts_of_about_equal_size(count: int, parts: int) -> None:
    members: list[Any] = [SimpleNamespace(info=SimpleNamespace(file_size=1 + n % 7)) for n in range(count)]
    found = _parts(members)
    assert len(found) == parts
    assert sorted(map(id, members)) == sorted(id(member) for part in found for member in part)
    sizes = [sum(member.info.file_size for member in part) for part in found]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("data", [b"no zip", None])
def test_what_is_no_wheel_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "a.whl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(EnvironmentCannot, match="is not a wheel: ") as refused:
        wheel_contents(path)
    assert refused.value.where == str(path)

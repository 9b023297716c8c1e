"""An image lists its package files: their names in index and pool, and their digests."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from bench.images.debian_base import Deb
from bench.images.package_list import for_layers, pool_paths, read_list, write_list
from bench.packages.package_index import PackageFile
from tests.images.odd_packages import make_wheel

STATUS = """Package: libstdc++6
Status: install ok installed
Source: gcc-12 (12.2.0-13)
Version: 12.2.0-14+deb12u1
Architecture: amd64

Package: libzstd1
Status: install ok installed
Source: libzstd
Version: 1.5.4+dfsg2-5
Architecture: amd64

Package: tzdata
Status: install ok installed
Version: 1:2025b-0+deb12u2
Architecture: all

Package: removed
Status: deinstall ok config-files
Version: 1
Architecture: all
"""


def test_a_package_has_one_path_in_every_mirrors_pool() -> None:
    assert dict(pool_paths(STATUS)) == {
        "libstdc++6": "g/gcc-12/libstdc++6_12.2.0-14+deb12u1_amd64.deb",
        "libzstd1": "libz/libzstd/libzstd1_1.5.4+dfsg2-5_amd64.deb",
        "tzdata": "t/tzdata/tzdata_2025b-0+deb12u2_all.deb",
    }


def test_the_list_names_wheels_and_debian_packages_by_digest(tmp_path: Path) -> None:
    wheel, base = make_wheel(tmp_path, "thing", {}), tmp_path / "base.tar"
    with tarfile.open(base, "w") as archive:
        entry = tarfile.TarInfo("./var/lib/dpkg/status")
        entry.size = len(STATUS)
        archive.addfile(entry, io.BytesIO(STATUS.encode()))
    data = write_list([wheel], [Deb("tzdata", "2025b-0+deb12u2", "a" * 64)], base)
    size, sha256 = wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
    files = read_list(data)
    assert files == (
        PackageFile("thing-1.0-py3-none-any.whl", sha256, size),
        PackageFile("t/tzdata/tzdata_2025b-0+deb12u2_all.deb", "a" * 64, None),
    )
    assert for_layers(files, ["thing"], with_debs=False) == files[:1]
    assert for_layers(files, ["other"], with_debs=True) == files[1:]


@pytest.mark.parametrize("sha256", ["../../etc/passwd", "A" * 64, ""])
def test_a_digest_that_is_none_is_refused(sha256: str) -> None:
    document = {"schema": "bench/packages/v1", "files": [["thing-1.0-py3-none-any.whl", sha256, 5]]}
    with pytest.raises(ValueError, match="not the digest"):
        read_list(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("source", "version", "path"),
    [
        ("", "1", "a/abc/abc_1_all.deb"),
        ("Source: lib\n", "1", "lib/lib/abc_1_all.deb"),
        ("Source: libx\n", "2:1", "libx/libx/abc_1_all.deb"),
        ("Source: libxy (9)\n", "1:2:1", "libx/libxy/abc_1_all.deb"),
        ("Source: xlib\n", "1", "x/xlib/abc_1_all.deb"),
    ],
)
def test_a_path_follows_from_source_and_version(source: str, version: str, path: str) -> None:
    status = f"Package: abc\nStatus: install ok installed\n{source}Version: {version}\nArchitecture: all\n"
    assert [*pool_paths(status)] == [("abc", path)]


def test_wheels_come_first_and_both_kinds_are_sorted(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, {}) for name in ("b", "a")]
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as archive:
        for name, data in (("etc/passwd", b"x"), ("var/lib/dpkg/status", STATUS.encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    debs = [Deb("tzdata", "1", "a" * 64), Deb("libzstd1", "1", "b" * 64), Deb("absent", "1", "c" * 64)]
    data = write_list(wheels, debs, base)
    assert [file.name.partition("-")[0].partition("_")[0] for file in read_list(data)] == [
        "a", "b", "libz/libzstd/libzstd1", "t/tzdata/tzdata",
    ]  # fmt: skip
    assert json.loads(data)["schema"] == "bench/packages/v1"


def test_a_base_without_dpkg_has_no_debian_packages(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "base.tar", "w") as archive:
        folder = tarfile.TarInfo("var/lib/dpkg/status")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert read_list(write_list([], [Deb("tzdata", "1", "a" * 64)], tmp_path / "base.tar")) == ()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"schema": "bench/packages/v2", "files": []},
        {"schema": "bench/packages/v1", "files": [["a", "b"]]},
    ],
)
def test_a_list_of_another_form_is_refused(document: object) -> None:
    with pytest.raises(ValueError):
        read_list(json.dumps(document).encode())


def test_layers_take_the_files_of_their_projects() -> None:
    a, b, deb = (
        PackageFile(name, "a" * 64, 1)
        for name in ("A_x-1-py3-none-any.whl", "b-1-py3-none-any.whl", "t/t.deb")
    )
    assert for_layers((a, b, deb), ["a-x"], with_debs=True) == (a, deb)
    assert for_layers((a, b, deb), [], with_debs=False) == ()

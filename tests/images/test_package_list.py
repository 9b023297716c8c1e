"""An image lists its package files: their names in index and pool, and their digests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bench.images.debian_packages import Deb
from bench.images.package_list import for_layers, read_list, write_list
from bench.packages.package_index import PackageFile
from tests.images.odd_packages import make_wheel

TZDATA = Deb("tzdata", "1:2025b-0+deb12u2", "a" * 64, "t/tzdata/tzdata_2025b-0+deb12u2_all.deb")
ZSTD = Deb("libzstd1", "1.5.4+dfsg2-5", "b" * 64, "libz/libzstd/libzstd1_1.5.4+dfsg2-5_amd64.deb")


def test_the_list_names_wheels_and_debian_packages_by_digest(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "thing", {})
    data = write_list([wheel], [TZDATA])
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


def test_wheels_come_first_and_both_kinds_are_sorted(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, {}) for name in ("b", "a")]
    data = write_list(wheels, [TZDATA, ZSTD])
    assert [file.name.partition("-")[0].partition("_")[0] for file in read_list(data)] == [
        "a", "b", "libz/libzstd/libzstd1", "t/tzdata/tzdata",
    ]  # fmt: skip
    assert json.loads(data)["schema"] == "bench/packages/v1"


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

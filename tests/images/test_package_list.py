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

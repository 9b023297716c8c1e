"""Write and read the list, inside of an image, of the package files that the image was made of.

Nodes download these files to assemble the image.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.base.stamps import file_sha256, is_sha256
from bench.base.strict_json import canonical_json, from_json, strict_loads, to_json
from bench.images.debian_base import Deb, deb_name, pool_path
from bench.images.sbom import paragraphs
from bench.packages.package_index import PackageFile

LIST = "usr/share/bench/packages.json"  # path in an image
DPKG = "var/lib/dpkg/status"


def write_list(wheels: Iterable[Path], debs: Iterable[Deb], base: Path) -> bytes:
    """Return the list of an image's wheels, and of the Debian packages of its base."""
    sha256 = {deb.name: deb.sha256 for deb in debs}
    pool = [(path, sha256[name], None) for name, path in pool_paths(_dpkg_status(base)) if name in sha256]
    files = [(path.name, file_sha256(path), path.stat().st_size) for path in wheels]
    return canonical_json(to_json(PackageList((*sorted(files), *sorted(pool)), "bench/packages/v1")))


@dataclass(frozen=True, slots=True)
class PackageList:
    """The contents of packages.json."""

    files: tuple[tuple[str, str, int | None], ...]
    schema: Literal["bench/packages/v1"]


def read_list(data: bytes) -> tuple[PackageFile, ...]:
    """Parse a list of package files; ValueError for another form, and for malformed digests."""
    files = tuple(PackageFile(*row) for row in from_json(PackageList, strict_loads(data)).files)
    if not all(is_sha256(file.sha256) for file in files):
        raise ValueError("not the digest of a package file")
    return files


def pool_paths(status: str) -> Iterator[tuple[str, str]]:
    """Yield name and path, below the mirrors' pool/main, of each package in dpkg's status file."""
    for fields in paragraphs(status):
        package, source = fields["Package"], fields.get("Source", fields["Package"]).partition(" ")[0]
        yield package, pool_path(source, deb_name(package, fields["Version"], fields["Architecture"]))


def _dpkg_status(base: Path) -> str:
    with tarfile.open(base) as archive:
        for member in archive:
            if member.name.removeprefix("./") == DPKG and (file := archive.extractfile(member)):
                return file.read().decode()
    return ""


def for_layers(
    files: Sequence[PackageFile], projects: Iterable[str], *, with_debs: bool
) -> tuple[PackageFile, ...]:
    """Return the files of these Python distributions, and the Debian packages if `with_debs`."""
    wanted = set(projects)
    return tuple(file for file in files if (file.project in wanted if file.is_wheel else with_debs))

"""Write and read the list, inside of an image, of the package files that the image was made of.

Nodes download these files to assemble the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.base.stamps import file_sha256, is_sha256
from bench.base.strict_json import canonical_json, from_json, strict_loads, to_json
from bench.images.debian_packages import Deb
from bench.packages.package_index import PackageFile

LIST = "usr/share/bench/packages.json"  # path in an image


def write_list(wheels: Iterable[Path], debs: Iterable[Deb]) -> bytes:
    """Return the list of an image's wheels, and of the Debian packages of its base."""
    pool = [(deb.path, deb.sha256, None) for deb in debs]
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


def for_layers(
    files: Sequence[PackageFile], projects: Iterable[str], *, with_debs: bool
) -> tuple[PackageFile, ...]:
    """Return the files of these Python distributions, and the Debian packages if `with_debs`."""
    wanted = set(projects)
    return tuple(file for file in files if (file.project in wanted if file.is_wheel else with_debs))

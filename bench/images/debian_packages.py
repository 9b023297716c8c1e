"""Read the lock of Debian packages, and download its packages by digest.

A mirror lists only the newest version of a package, and keeps the files of older ones for some days or weeks.
Files are therefore downloaded by their path in a mirror's pool, and those that have left the mirrors come
from Debian's archive of all packages that it ever had, as it was on the day after that of the lock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot
from bench.packages.apt_sources import read_mirrors
from bench.packages.download import WantedFile, fetch_all
from bench.packages.errors import CannotDownload
from bench.packages.package_index import PackageFile, PackageIndex
from bench.packages.pip_settings import read_settings

_ARCHIVE = "http://snapshot.debian.org/archive"
_DAY_SECONDS = 86_400
_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]+) (?P<version>[A-Za-z0-9.+:~-]+) (?P<sha256>[0-9a-f]{64})"
    r" (?P<path>[a-z0-9]+/[a-z0-9][a-z0-9+.-]+/[A-Za-z0-9+.~_-]+\.deb)"
)
_ADVICE = "name a mirror of Debian that this machine reaches: --mirror URL"


@dataclass(frozen=True, slots=True, order=True)
class Deb:
    """A Debian package of the lock."""

    name: str
    version: str
    sha256: str
    path: str  # below a mirror's pool/main

    @property
    def line(self) -> str:
        """Return the package's line in the lock of Debian packages."""
        return f"{self.name} {self.version} {self.sha256} {self.path}"

    @property
    def file(self) -> PackageFile:
        """Return the package's file, as mirrors offer it."""
        return PackageFile(self.path, self.sha256, None)


def deb_name(package: str, version: str, architecture: str) -> str:
    """Return the name of a package's file on Debian's mirrors, which leaves out the version's epoch."""
    return f"{package}_{version.rpartition(':')[2]}_{architecture}.deb"


def pool_path(source: str, file_name: str) -> str:
    """Return the path of a package's file below a mirror's pool/main, by the name of its source package."""
    folder = source[:4] if source.startswith("lib") else source[0]
    return f"{folder}/{source}/{file_name}"


def read_debs(path: Path) -> tuple[Deb, ...]:
    """Read a lock of Debian packages; BadInput names the first malformed line."""
    debs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            where, advice = f"{path}: line {number}", "make lock"
            raise BadInput("is not of the form NAME VERSION SHA256 PATH", where=where, advice=advice)
        debs.append(Deb(**match.groupdict()))
    return tuple(debs)


def archives(epoch: int) -> tuple[str, ...]:
    """Return Debian's archives of old packages, as mirrors, as they were a day after `epoch` began.

    `epoch` is the beginning of the day on which the lock was made.
    """
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch + _DAY_SECONDS))
    return tuple(f"{_ARCHIVE}/{part}/{moment}" for part in ("debian", "debian-security"))


def fetch_debs(debs: Sequence[Deb], mirrors: Iterable[str], epoch: int, folder: Path) -> list[Path]:
    """Return the files of these packages, in their order; download those that `folder` lacks, by digest.

    They come from the named mirrors, or from those of this machine's apt if none is named; at last from
    Debian's archive. EnvironmentCannot names the first package that none of them has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [deb.file for deb in debs if not (folder / deb.sha256).exists()]
    if lacking:
        places = [each for mirror in mirrors for each in read_mirrors(mirror)] or read_mirrors()
        _download(lacking, (*places, *archives(epoch)), folder)
    return [folder / deb.sha256 for deb in debs]


def _download(files: Sequence[PackageFile], mirrors: Sequence[str], folder: Path) -> None:
    try:
        index = PackageIndex(read_settings(os.environ, Path.home()), mirrors)
        for some in (files[:1], files[1:]):  # if no mirror answers, the first file shows it
            _, refused = fetch_all([WantedFile.of(file, index) for file in some], index, folder)
            for path, why in sorted(refused.items()):
                name = path.rpartition("/")[2]
                raise EnvironmentCannot(f"Debian's package {name}: {why}", advice=_ADVICE)
    except CannotDownload as error:
        raise EnvironmentCannot(error.message, where=error.where, advice=error.advice) from None

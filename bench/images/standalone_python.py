"""Make a Python that needs no installation, of the locked Debian packages of the images' own Python.

In:  docker/debian.lock, and the mirrors from which its packages are downloaded, by digest. Out: a .tar.gz of
one folder that can lie anywhere: bin/python3.11, lib/python3.11, include/, the shared libraries that Debian
has in packages of their own (`BUNDLED`), and all licences. The same lock gives the same files.

OpenSSL is left out: the machine's own knows where its certificates are, and is kept up to date there.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.files import write_whole
from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json
from bench.environment.interpreter import BUNDLED
from bench.images.debian_packages import Deb, fetch_debs, read_debs
from bench.images.variants import images
from bench.packages.deb_file import package_tars

OLDEST_GLIBC = "2.36"  # of Debian 12, for which the packages were compiled
_FORM = "bench/standalone-python/v1"  # changes with the files that are made of the same packages
_LOCK = "docker/debian.lock"
# {} is Python's version.
_PACKAGES = (
    "libbz2-1.0",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libpython{}-dev",  # headers, with which Triton compiles
    "libpython{}-minimal",
    "libpython{}-stdlib",
    "libsqlite3-0",
    "libuuid1",
    "python{}-minimal",
    "zlib1g",
)
_ARCHITECTURE = "x86_64-linux-gnu"
# Files below Debian's / that are taken, and where they go. {} is Python's version.
_TAKEN = (
    (r"usr/bin/(?P<name>python{})", "bin"),
    (rf"usr/include/(?P<name>{_ARCHITECTURE}/.+)", "include/python{}"),
    (r"usr/include/(?P<name>python{}/.+)", "include"),
    (r"usr/lib/(?P<name>python{}/(?!config-|test/|sitecustomize\.py).+)", "lib"),
    (rf"(?:usr/)?lib/{_ARCHITECTURE}/(?P<name>lib(?!python|expatw)[^/]+\.so\.[^/]+)", BUNDLED),
    (r"usr/share/doc/(?P<name>[^/]+/copyright)", "share/doc"),
)


@dataclass(frozen=True, slots=True)
class StandalonePython:
    """A Python as a .tar.gz on this machine."""

    version: str  # major.minor
    digest: str  # sha256 of its packages' digests
    path: Path

    def folder(self, place: str) -> str:
        """Return its folder in the place of bench on a node."""
        return f"{place}/pythons/{self.digest}"


def make_python(source: Path, mirror: str, folder: Path) -> StandalonePython:
    """Return the Python of the lock below `source`, from `folder` if it was made before.

    Its packages come from `mirror`, or from the mirrors of this machine's apt if that is empty.
    EnvironmentCannot if a package cannot be downloaded.
    """
    if not (source / _LOCK).exists():
        advice = "run in bench's repository, which has the locks, or name it: --source DIR"
        raise BadInput(f"has no {_LOCK}", where=str(source), advice=advice)
    version = images().python
    debs = needed_packages(read_debs(source / _LOCK), version)
    digest = sha256(canonical_json([_FORM, *(deb.sha256 for deb in debs)]))
    path = folder / f"{digest}.tar.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            packages = fetch_debs(debs, [mirror] if mirror else [], images().epoch, Path(work))
            write_whole(path, _packed(packages, version))
    return StandalonePython(version, digest, path)


def needed_packages(debs: Sequence[Deb], version: str) -> list[Deb]:
    """Return the packages of a lock of which the Python is made."""
    names = {name.format(version) for name in _PACKAGES}
    if lacking := sorted(names - {deb.name for deb in debs}):
        raise BadInput(f"does not name {lacking[0]}", where=_LOCK, advice="make lock")
    return sorted(deb for deb in debs if deb.name in names)


def destination(path: str, version: str) -> str | None:
    """Return where a file of Debian's is in the Python's folder; None for a file that is left out."""
    for pattern, folder in _TAKEN:
        if match := re.fullmatch(pattern.replace("{}", re.escape(version)), path):
            return f"{folder.format(version)}/{match['name']}"
    return None


def _packed(packages: Sequence[Path], version: str) -> bytes:
    """Return the Python as a .tar.gz: files in the order of their names, without owners and times."""
    entries = dict(entry for package in packages for entry in _taken(package, version))
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 6, packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for _, (entry, data) in sorted(entries.items()):
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _taken(package: Path, version: str) -> Iterator[tuple[str, tuple[tarfile.TarInfo, bytes]]]:
    """Yield name, entry and data of the files of a package that the Python has."""
    with package.open("rb") as file:
        for member, stream in package_tars(file):
            if not member.startswith("data.tar"):
                continue
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for found in archive:
                    name = destination(found.name.removeprefix("./"), version)
                    if name is None or not (found.isreg() or _is_beside(found)):
                        continue
                    data = archive.extractfile(found) if found.isreg() else None
                    yield name, _entry(name, found, data.read() if data else b"")


def _is_beside(found: tarfile.TarInfo) -> bool:
    """Whether a member is a link to another file of its folder."""
    return found.issym() and "/" not in found.linkname


def _entry(name: str, found: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = 0o555 if found.mode & 0o100 else 0o444
    if found.issym():
        entry.type, entry.linkname = tarfile.SYMTYPE, found.linkname
    return entry, data

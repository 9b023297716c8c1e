"""Find and copy packages that a Python of this machine already has, if their files are locked wheels' files.

A rented GPU node often has gigabytes of torch and CUDA libraries among the packages of its own Python. Where
the RECORD of such a package lists the contents of a locked wheel, its files are copied instead of downloaded.
A plan trusts RECORD; the copies themselves are hashed, where no other user can change them.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import os
import re
import site as python_site
import stat
import sys
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench.environment.contents import SCRIPTS, SITE, LockedPackage, written_by_installers
from bench.environment.identity import InstalledFile, tree_digest
from bench.environment.unpack import CopiedPackage
from bench.packages.package_index import normal

_PARENTS = 3  # from a folder of packages up to the folder that also has bin: lib/python3.12/site-packages
_METADATA = re.compile(r"(?P<name>[^/]+)-(?P<version>[^-/]+)\.dist-info")
_HEADERS = re.compile(r"include/(site/)?python3[^/]*/.*")
_MOST_RECORD_BYTES = 64 * 2**20
_CHUNK = 2**20  # bytes
# Errors of copy_file_range where the kernel or the file systems cannot do it.
_NO_RANGES = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF}


class _Differs(Exception):
    """An installed package is not the locked one; the message says how it differs."""


@dataclass(frozen=True, slots=True)
class _HeldFile:
    """A file of an installed package, as its RECORD and the file system state it."""

    source: str  # path below the package's root
    size: int
    stated: InstalledFile


@dataclass(frozen=True, slots=True)
class HeldPackage:
    """An installed package whose RECORD lists the contents of a locked wheel."""

    root: Path  # the folder that has lib and bin
    files: tuple[_HeldFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files that would be copied."""
        return sum(file.size for file in self.files)


def folders_of_packages(path: str) -> list[Path]:
    """Return the site-packages folders of this Python and of the Pythons on `path`, a value of PATH.

    Torch may be installed for another Python than the one that was chosen, so all of them count.
    """
    found = [Path(each) for each in sys.path if each.endswith("-packages")]
    with suppress(AttributeError):  # where Python was started without its module site
        found += map(Path, python_site.getsitepackages())
    for programs in (Path(each) for each in path.split(":") if each.startswith("/")):
        for kind in ("site-packages", "dist-packages"):
            found += sorted(programs.parent.glob(f"lib/python3*/{kind}"))
    real = (each.resolve() for each in found if each.is_dir())
    return list(dict.fromkeys(real))


def find(
    wanted: Iterable[LockedPackage], folders: Sequence[Path]
) -> tuple[dict[str, HeldPackage], dict[str, str]]:
    """Look for packages in site-packages folders; return those that can be copied, by name.

    The second value says why other packages that are there cannot be copied. No file of a package is read.
    """
    there = [(folder, _versions(folder)) for folder in folders]
    held: dict[str, HeldPackage] = {}
    differing: dict[str, str] = {}
    for package in (each for each in wanted if each.contents):
        for folder, versions in there:
            for version, metadata in versions.get(package.name, ()):
                try:
                    held[package.name] = _held(package, version, folder / metadata)
                except _Differs as why:
                    differing.setdefault(package.name, str(why))
        if package.name in held:
            differing.pop(package.name, None)
    return held, differing


def _versions(folder: Path) -> Mapping[str, list[tuple[str, str]]]:
    """Return the version and the folder of metadata of each package, by its normalised name."""
    versions: dict[str, list[tuple[str, str]]] = {}
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if match := _METADATA.fullmatch(path.name):
                versions.setdefault(normal(match["name"]), []).append((match["version"], path.name))
    return versions


def _held(package: LockedPackage, version: str, metadata: Path) -> HeldPackage:
    if version.lower() != package.version.lower():
        raise _Differs(f"{version} is installed")
    folder = metadata.parent
    root = folder.parents[_PARENTS - 1] if len(folder.parents) >= _PARENTS else Path("/")
    try:
        record = _read(root, (metadata / "RECORD").relative_to(root).as_posix(), _MOST_RECORD_BYTES)
        files = tuple(_files(record.decode(), folder, root))
    except FileNotFoundError as error:
        raise _Differs(f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, csv.Error) as error:
        raise _Differs(f"its RECORD cannot be used: {error}") from None
    if tree_digest(file.stated for file in files) not in package.contents:
        raise _Differs("its RECORD lists other files than the locked wheel's")
    return HeldPackage(root, files)


def _files(text: str, folder: Path, root: Path) -> Iterator[_HeldFile]:
    """Yield the files that a RECORD lists, except those that installers write, headers and scripts."""
    own = folder.relative_to(root).as_posix()
    for name, hashed, size, *_ in ((*row, "", "", "") for row in csv.reader(text.splitlines()) if row):
        path = _path(name)
        if written_by_installers(name) or _HEADERS.fullmatch(path):
            continue
        source = f"{own}/{name}" if path.startswith(f"{SITE}/") else path
        if path.startswith(f"{SCRIPTS}/") and _read(root, source, 2) == b"#!":
            continue
        kind, _, digest = hashed.partition("=")
        if kind != "sha256":
            raise ValueError(f"{name} has no sha256")
        sha256 = urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
        now = os.lstat(root / source)
        if not stat.S_ISREG(now.st_mode):
            raise _Differs(f"{name} is not a regular file")
        if size not in ("", str(now.st_size)):
            raise _Differs(f"{name} was changed")
        yield _HeldFile(source, now.st_size, InstalledFile(path, sha256, _is_executable(path, now)))


def _path(name: str) -> str:
    """Convert the path of a file in a RECORD to its path in the package's contents; ValueError if outside."""
    parts = PurePosixPath(name).parts
    above = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    below = parts[above:]
    if name.startswith("/") or ".." in below or "\\" in name or above not in (0, _PARENTS) or not below:
        raise ValueError(f"{name!r:.100} is outside")
    return "/".join((SITE, *below) if above == 0 else below)


def _is_executable(path: str, now: os.stat_result) -> bool:
    return bool(now.st_mode & 0o111) or path.startswith(f"{SCRIPTS}/")


def copy_all(
    held: Mapping[str, HeldPackage],
    wanted: Iterable[LockedPackage],
    folder: Path,
    advance: Callable[[int], object],
) -> tuple[dict[str, CopiedPackage], dict[str, str]]:
    """Copy packages into a folder; return those whose copies have the contents of a locked wheel, by name.

    The second value says why other packages differ. `advance` is called with the number of copied bytes, from
    several threads.
    """
    contents = {package.name: package.contents for package in wanted}
    jobs = [(name, file) for name, package in held.items() for file in package.files]
    jobs.sort(key=lambda job: -job[1].size)
    for parent in {(folder / name / file.stated.path).parent for name, file in jobs}:
        parent.mkdir(parents=True, exist_ok=True)

    def copy(job: tuple[str, _HeldFile]) -> InstalledFile | str:
        name, file = job
        try:
            made = _copy(held[name].root, file, folder / name / file.stated.path)
        except OSError as error:
            return f"{file.source}: {error.strerror}"
        advance(file.size)
        return made if made == file.stated else f"{file.source} was changed"

    copies: dict[str, list[InstalledFile]] = {name: [] for name in held}
    differing: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for (name, _), file in zip(jobs, pool.map(copy, jobs), strict=True):
            if isinstance(file, str):
                differing.setdefault(name, file)
            else:
                copies[name].append(file)
    for name, files in copies.items():
        if name not in differing and tree_digest(files) not in contents[name]:
            differing[name] = "its files are not those of the locked wheel"
    kept = {name: tuple(files) for name, files in copies.items() if name not in differing}
    return {name: CopiedPackage(folder / name, files) for name, files in kept.items()}, differing


def _copy(root: Path, file: _HeldFile, target: Path) -> InstalledFile:
    """Copy a file, following no symbolic link; return the path, digest and mode of the copy."""
    source = _open_below(root, file.source)
    try:
        now = os.fstat(source)
        if not stat.S_ISREG(now.st_mode) or now.st_size != file.size:
            raise OSError(errno.EINVAL, "is another file than before")
        with target.open("xb+") as copy:
            _copy_bytes(source, copy.fileno(), file.size)
            copy.seek(0)
            sha256 = hashlib.file_digest(copy, "sha256").hexdigest()
            executable = _is_executable(file.stated.path, now)
            os.fchmod(copy.fileno(), 0o555 if executable else 0o444)
    finally:
        os.close(source)
    return InstalledFile(file.stated.path, sha256, executable)


def _read(root: Path, path: str, most: int) -> bytes:
    """Read the first `most` bytes of a file, following no symbolic link."""
    with open(_open_below(root, path), "rb") as file:
        return file.read(most)


def _open_below(root: Path, path: str) -> int:
    """Open a file below a folder; OSError if it, or a folder on the way, is a symbolic link."""
    *parents, name = PurePosixPath(path).parts
    at = os.open(root, os.O_RDONLY)
    try:
        for parent in parents:
            inner = os.open(parent, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def _copy_bytes(source: int, target: int, size: int) -> None:
    """Copy `size` bytes between two files; file systems that can do so share the blocks (reflinks)."""
    done = 0
    try:
        while done < size and (count := os.copy_file_range(source, target, size - done)):
            done += count
    except OSError as error:
        if error.errno not in _NO_RANGES:
            raise
    os.lseek(source, done, os.SEEK_SET)
    os.lseek(target, done, os.SEEK_SET)
    while done < size and (data := os.read(source, min(_CHUNK, size - done))):
        os.write(target, data)
        done += len(data)

"""Write the files of packages into an environment: from wheels (PEP 427), or from copies made before.

Entry points and scripts are left out: they name the folder of their Python, and bench starts none of them. If
several packages have a file of the same path, the last package by name wins. Each package gets a RECORD of
the files that the environment has of it.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from bench.base.errors import EnvironmentCannot
from bench.environment.contents import RECORD, SCRIPTS, SITE, in_environment, record, written_by_installers
from bench.environment.identity import InstalledFile

_CHUNK = 2**20  # bytes
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


@dataclass(frozen=True, slots=True)
class CopiedPackage:
    """The contents of a package in a folder of their own, from which `unpack` moves them."""

    folder: Path
    files: tuple[InstalledFile, ...]  # with the paths that they have below the folder


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file that was copied, and its description in the environment."""

    source: Path
    file: InstalledFile

    @property
    def path(self) -> str:
        """Path in the environment to which the file belongs."""
        return self.file.path

    def move(self, folder: Path) -> InstalledFile:
        """Rename the copy to its place below `folder`, which is on its file system."""
        self.source.rename(folder / self.path)
        return self.file


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of a wheel and the path in the environment to which it belongs."""

    wheel: Path
    info: zipfile.ZipInfo
    path: str

    @property
    def executable(self) -> bool:
        """Whether the wheel marks the file as executable, or it is a script."""
        return bool(self.info.external_attr >> 16 & 0o111) or self.path.startswith(f"{SCRIPTS}/")


def unpacked_bytes(wheels: Mapping[str, Path]) -> int:
    """Return the size of all files of all wheels."""
    return sum(info.file_size for wheel in wheels.values() for info in _read(wheel).infolist())


def wheel_contents(wheel: Path) -> list[InstalledFile]:
    """Hash those files of a wheel that an environment would contain."""
    with _read(wheel) as archive:
        return [
            InstalledFile(member.path, _hash(archive, member, None), member.executable)
            for member in _members(wheel, SITE)
        ]


def unpack(
    wheels: Mapping[str, Path],
    copied: Mapping[str, CopiedPackage],
    site: str,
    folder: Path,
    advance: Callable[[int], object],
) -> list[InstalledFile]:
    """Write the files of all packages, by project, below `folder`; `site` is the folder of packages in it.

    `advance` is called with the bytes that were written, from several threads.
    """
    owners: dict[str, tuple[str, _Member | _Copy]] = {}
    for project in sorted({*wheels, *copied}):
        members = _copies(copied[project], site) if project in copied else _members(wheels[project], site)
        owners |= {member.path: (project, member) for member in members}
    for parent in sorted({str(PurePosixPath(path).parent) for path in owners}):
        (folder / parent).mkdir(parents=True, exist_ok=True)
    sources = [source for _, source in owners.values()]
    files = [source.move(folder) for source in sources if isinstance(source, _Copy)]
    files += _write_all([source for source in sources if isinstance(source, _Member)], folder, advance)
    by_project: dict[str, list[InstalledFile]] = {}
    for file in files:
        by_project.setdefault(owners[file.path][0], []).append(file)
    return files + [made for own in by_project.values() for made in _write_record(own, site, folder)]


def _copies(package: CopiedPackage, site: str) -> Iterator[_Copy]:
    for file in package.files:
        yield _Copy(package.folder / file.path, in_environment(file, site))


def _write_record(files: list[InstalledFile], site: str, folder: Path) -> Iterator[InstalledFile]:
    """Write the RECORD of a package and yield it; yield nothing if the package has no metadata folder."""
    for file in files:
        if _METADATA.fullmatch(file.path.removeprefix(f"{site}/")):
            path = str(PurePosixPath(file.path).with_name(RECORD))
            data = record(files, site, path)
            (folder / path).write_bytes(data)
            (folder / path).chmod(0o444)
            yield InstalledFile(path, hashlib.sha256(data).hexdigest(), executable=False)
            return


def _write_all(
    members: Iterable[_Member], folder: Path, advance: Callable[[int], object]
) -> list[InstalledFile]:
    groups: dict[Path, list[_Member]] = {}
    for member in members:
        groups.setdefault(member.wheel, []).append(member)
    by_size = sorted(groups.items(), key=lambda group: -group[0].stat().st_size)
    jobs = [(wheel, part) for wheel, own in by_size for part in _parts(own)]
    with ThreadPoolExecutor() as pool:  # zlib and sha256 release the GIL
        written = pool.map(lambda job: _write(job[0], job[1], folder, advance), jobs)
        return [file for files in written for file in files]


def _parts(members: list[_Member]) -> list[list[_Member]]:
    """Divide a wheel's files into parts of about equal size, so that threads share a large wheel."""
    parts: list[list[_Member]] = [[] for _ in range(min(8, 1 + len(members) // 64))]
    sizes = [0] * len(parts)
    for member in sorted(members, key=lambda member: -member.info.file_size):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(member)
        sizes[smallest] += member.info.file_size
    return parts


def _read(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as error:
        raise EnvironmentCannot(f"is not a wheel: {error}", where=str(wheel)) from None


def _members(wheel: Path, site: str) -> list[_Member]:
    """Return the files of a wheel with the paths to which they belong."""
    members = []
    with _read(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir() or (path := destination(info.filename, site)) is None:
                continue
            if path.startswith(f"{site}/") and written_by_installers(path.removeprefix(f"{site}/")):
                continue
            if not (path.startswith(f"{SCRIPTS}/") and _is_script(archive, info)):
                members.append(_Member(wheel, info, path))
    return members


def destination(name: str, site: str) -> str | None:
    """Return the path of a wheel's file below the environment; None for a file that has no use there."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or not parts:
        raise EnvironmentCannot(f"a wheel has a file outside of its folder: {name!r:.100}")
    if not parts[0].endswith(".data") or len(parts) < 3:
        return f"{site}/{name}"
    match parts[1]:
        case "purelib" | "platlib":
            return "/".join((site, *parts[2:]))
        case "scripts":
            return "/".join((SCRIPTS, *parts[2:]))
        case "data":
            return "/".join(parts[2:])
    return None  # headers


def _is_script(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    with archive.open(info) as file:
        return file.read(2) == b"#!"


def _write(
    wheel: Path, members: list[_Member], folder: Path, advance: Callable[[int], object]
) -> list[InstalledFile]:
    files = []
    with _read(wheel) as archive:
        for member in members:
            target = folder / member.path
            with target.open("wb") as file:
                sha256 = _hash(archive, member, file)
            target.chmod(0o555 if member.executable else 0o444)
            files.append(InstalledFile(member.path, sha256, member.executable))
            advance(member.info.file_size)
    return files


def _hash(archive: zipfile.ZipFile, member: _Member, file: BinaryIO | None) -> str:
    """Return the sha256 of a wheel's file, and write its bytes to `file`."""
    digest = hashlib.sha256()
    with archive.open(member.info) as source:
        while data := source.read(_CHUNK):
            digest.update(data)
            if file is not None:
                file.write(data)
    return digest.hexdigest()

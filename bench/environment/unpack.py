"""Write the files of wheels into an environment, in the way of the wheel format (PEP 427).

Entry points and scripts are left out, because they name the folder of their Python: bench starts none of
them. Files that wheels share are those of the last wheel by name, as with pip, whichever is unpacked first.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench.base.errors import EnvironmentCannot
from bench.environment.identity import InstalledFile

_CHUNK = 2**20  # bytes
_SCRIPTS = "bin"


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of a wheel and the path in the environment to which it belongs."""

    wheel: Path
    info: zipfile.ZipInfo
    path: str


def unpacked_bytes(wheels: Mapping[str, Path]) -> int:
    """Return the size of all files of all wheels."""
    return sum(info.file_size for wheel in wheels.values() for info in _read(wheel).infolist())


def unpack(
    wheels: Mapping[str, Path], site: str, folder: Path, advance: Callable[[int], object]
) -> list[InstalledFile]:
    """Write the files of all wheels, by project, below `folder`; `site` is the folder of packages in it.

    `advance` is called with the bytes that were written, from several threads.
    """
    owners: dict[str, _Member] = {}
    for _, wheel in sorted(wheels.items()):
        owners |= {member.path: member for member in _members(wheel, site)}
    groups: dict[Path, list[_Member]] = {}
    for member in owners.values():
        groups.setdefault(member.wheel, []).append(member)
    for parent in sorted({str(PurePosixPath(path).parent) for path in owners}):
        (folder / parent).mkdir(parents=True, exist_ok=True)
    by_size = sorted(groups.items(), key=lambda group: -group[0].stat().st_size)
    halves = [(wheel, part) for wheel, members in by_size for part in _parts(members)]
    with ThreadPoolExecutor(
        min(16, os.cpu_count() or 1) + 1
    ) as pool:  # zlib and sha256 run beside each other
        written = pool.map(lambda half: _write(half[0], half[1], folder, advance), halves)
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
        raise EnvironmentCannot(f"is no wheel: {error}", where=str(wheel)) from None


def _members(wheel: Path, site: str) -> list[_Member]:
    """Return the files of a wheel with the paths to which they belong."""
    members = []
    with _read(wheel) as archive:
        for info in archive.infolist():
            if not info.is_dir() and (path := destination(info.filename, site)) is not None:
                if path.startswith(f"{_SCRIPTS}/") and _is_script(archive, info):
                    continue
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
            return "/".join((_SCRIPTS, *parts[2:]))
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
            target, digest = folder / member.path, hashlib.sha256()
            executable = bool(member.info.external_attr >> 16 & 0o111) or member.path.startswith(
                f"{_SCRIPTS}/"
            )
            with archive.open(member.info) as source, target.open("wb") as file:
                while data := source.read(_CHUNK):
                    digest.update(data)
                    file.write(data)
            target.chmod(0o555 if executable else 0o444)
            files.append(InstalledFile(member.path, digest.hexdigest(), executable))
            advance(member.info.file_size)
    return files

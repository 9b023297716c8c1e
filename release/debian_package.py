"""Write the operator's side as a Debian package: wheels, from which its installation makes an environment.

The package needs no network, and no newer libraries for Python than the system has: it carries wheels for
each Python of its lock. It is written here, without dpkg, so that one commit gives equal bytes on any system.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from packaging.markers import Marker

from bench.base.distribution import DISTRIBUTION
from bench.environment.interpreter import Interpreter
from bench.environment.wheel_tags import misfit
from bench.images.fetch import wheels
from bench.images.locks import Pin
from release.operator_lock import MarkedPin

PYTHONS = ((3, 11), (3, 12), (3, 13))  # Debian 12 and 13, Ubuntu 24.04
_GLIBC = (2, 36)  # of Debian 12, the oldest of these systems
_TEMPLATES = Path(__file__).parent / "debian"
_SCRIPTS = ("postinst", "prerm")
_HOME = f"opt/{DISTRIBUTION}"
_DOCUMENTS = f"usr/share/doc/{DISTRIBUTION}"


@dataclass(frozen=True, slots=True)
class PackageContents:
    """The contents of the package: files by their paths below the root, and the links among them."""

    files: Mapping[str, bytes]
    links: Mapping[str, str]

    @property
    def folders(self) -> Sequence[str]:
        """Every folder above a file or a link, sorted, without the root."""
        parents = {str(parent) for path in (*self.files, *self.links) for parent in Path(path).parents}
        return sorted(parents - {"."})

    @property
    def kibibytes(self) -> int:
        """dpkg's "installed size": each file rounded up to KiB, and one for each other entry."""
        entries = len(self.links) + len(self.folders)
        return sum(-(-len(data) // 1024) for data in self.files.values()) + entries


def locked_wheels(pins: Sequence[MarkedPin], cache: Path) -> Mapping[str, Path]:
    """Return the wheels that the lock names for any of the Pythons, by file name.

    pip chooses among the files that the lock accepts, so that `cache` holds nothing that others put there.
    """
    found = {}
    for version in PYTHONS:
        python = Interpreter(Path(), version, "", "", _GLIBC)
        wanted = [Pin(pin.name, pin.version, frozenset(pin.sha256)) for pin in pins if _is_for(pin, version)]
        for path in wheels(
            wanted,
            cache,
            python.text,
            newest_glibc=_GLIBC[1],
            fits=lambda name, python=python: misfit(name, python) is None,  # type: ignore[misc]
        ).values():
            found[path.name] = path
    return found


def _is_for(pin: MarkedPin, version: tuple[int, int]) -> bool:
    """Whether a line of the lock applies to CPython of this version, on Linux."""
    text = "{}.{}".format(*version)
    environment = {
        "python_version": text, "python_full_version": f"{text}.0", "implementation_version": f"{text}.0",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
    }  # fmt: skip
    return not pin.marker or Marker(pin.marker).evaluate(dict(environment))


@dataclass(frozen=True, slots=True)
class Stated:
    """The facts that a package states about itself."""

    version: str
    maintainer: str  # NAME <ADDRESS>
    epoch: int  # time of all its files

    @property
    def fields(self) -> Mapping[str, str]:
        """The facts by the names that templates have for them, with the time as a date of a changelog."""
        date = formatdate(self.epoch)
        return {"version": self.version, "maintainer": self.maintainer, "date": date}


def write(out: Path, stated: Stated, lock: str, found: Mapping[str, Path]) -> Path:
    """Write the package into a folder; `lock` names all wheels that are `found`, bench's own included."""
    contents, epoch = _contents(stated, lock, found), stated.epoch
    control = _control(stated, contents)
    path = out / f"{DISTRIBUTION}_{stated.version}_amd64.deb"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar(PackageContents(control, {}), epoch, executable=_SCRIPTS),
        "data.tar.gz": _tar(contents, epoch),
    }
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, data in members.items():
            file.write(f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
            file.write(data + b"\n" * (len(data) % 2))
    return path


def _contents(stated: Stated, lock: str, found: Mapping[str, Path]) -> PackageContents:
    files = {f"{_HOME}/wheels/{name}": path.read_bytes() for name, path in sorted(found.items())}
    files |= {
        f"{_HOME}/operator.lock": lock.encode(),
        f"{_DOCUMENTS}/copyright": _template("copyright", {}),
        f"{_DOCUMENTS}/changelog.gz": _packed("changelog", stated.fields),
        "usr/share/man/man1/bench.1.gz": _packed("bench.1", stated.fields),
        f"usr/share/lintian/overrides/{DISTRIBUTION}": _template("overrides", {}),
    }
    return PackageContents(files, {"usr/bin/bench": f"/{_HOME}/environment/bin/bench"})


def _control(stated: Stated, contents: PackageContents) -> Mapping[str, bytes]:
    oldest, newest = PYTHONS[0], PYTHONS[-1]
    fields = {
        **stated.fields,
        "kibibytes": str(contents.kibibytes),
        "oldest": "{}.{}".format(*oldest),
        "after": f"{newest[0]}.{newest[1] + 1}",
    }
    sums = "".join(
        f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {path}\n"
        for path, data in sorted(contents.files.items())
    )
    control = {name: _template(name, fields) for name in ("control", "triggers", *_SCRIPTS)}
    return {**control, "md5sums": sums.encode()}


def _template(name: str, fields: Mapping[str, str]) -> bytes:
    """Fill the file of release/debian: each @FIELD@ is replaced."""
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    for field, value in fields.items():
        text = text.replace(f"@{field}@", value)
    return text.encode()


def _packed(name: str, fields: Mapping[str, str]) -> bytes:
    return gzip.compress(_template(name, fields), 9, mtime=0)


def _tar(contents: PackageContents, epoch: int, executable: Sequence[str] = ()) -> bytes:
    """Return a compressed tar of files that belong to root, in an order of their own."""
    target = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in ("", *contents.folders):
            archive.addfile(_entry(f"{path}/" if path else "", epoch, tarfile.DIRTYPE, 0o755))
        for path, data in sorted(contents.files.items()):
            entry = _entry(path, epoch, tarfile.REGTYPE, 0o755 if path in executable else 0o644)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for path, goal in sorted(contents.links.items()):
            entry = _entry(path, epoch, tarfile.SYMTYPE, 0o777)
            entry.linkname = goal
            archive.addfile(entry)
    return target.getvalue()


def _entry(path: str, epoch: int, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"./{path}")
    entry.type, entry.mode, entry.mtime = kind, mode, epoch
    entry.uname = entry.gname = "root"
    return entry

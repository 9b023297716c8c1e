"""Read vulnerabilities in OSV's format from files, and decide whether they affect a package. No network.

In: a file or a folder of OSV records (.json with one record or a list, .jsonl, or the .zip archives that
osv.dev offers). Out: `Vulnerability`, only of packages that are asked for. Format: https://ossf.github.io/osv-schema
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from bench.base.errors import BadInput
from bench.base.strict_json import DecodeError, strict_loads
from bench.images.debian_versions import debian_version
from bench.packages.package_index import normal

MAX_RECORD_BYTES = 32 * 2**20
MAX_RECORDS = 2_000_000
Key = tuple[str, str]  # ecosystem without its release, and the name of the package
_FORMATS = "give OSV records: .json, .jsonl, a .zip of osv.dev, or a folder of them"


@dataclass(frozen=True, slots=True)
class Package:
    """A package of an image, as OSV names packages."""

    ecosystem: str  # PyPI, crates.io, or Debian:12; Debian if its release is not known
    name: str  # of a Debian package, that of its source
    version: str  # of a Debian package, that of its source

    @property
    def key(self) -> Key:
        """Return the ecosystem without its release, and the name: what a feed's entries are found by."""
        return self.ecosystem.partition(":")[0], self.name


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """A record of the feed, reduced to the fields that a scan uses."""

    id: str
    aliases: tuple[str, ...]
    summary: str
    severity: str
    affected: tuple[Mapping[str, Any], ...]  # the entries of this record about packages that were asked for

    @property
    def names(self) -> frozenset[str]:
        """The id and all aliases, such as a CVE's number: a VEX statement may use any of them."""
        return frozenset((self.id, *self.aliases))


def read_feed(path: Path, wanted: frozenset[Key]) -> Iterator[Vulnerability]:
    """Yield every vulnerability that names one of the packages; withdrawn records are left out.

    BadInput if the path holds no record, or something that is not one: an incomplete feed would look like a
    clean image.
    """
    count = 0
    for where, data in _documents(path):
        for record in _records(data, where):
            count += 1
            if count > MAX_RECORDS:
                raise BadInput(f"has more than {MAX_RECORDS:,} records", where=str(path))
            if (found := _vulnerability(record, where, wanted)) is not None:
                yield found
    if not count:
        raise BadInput("holds no OSV record", where=str(path), advice=_FORMATS)


def _documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (where, bytes) of each document in a file, an archive or a folder."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in (".json", ".jsonl", ".zip") and file.is_file():
                yield from _documents(file)
        return
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if entry.filename.endswith(".json"):
                        where = f"{path}: {entry.filename}"
                        _require_size(entry.file_size, where)
                        yield where, archive.read(entry)
        elif path.suffix == ".jsonl":
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield f"{path}: line {number}", line
        else:
            _require_size(path.stat().st_size, str(path))
            yield str(path), path.read_bytes()
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be read: {why}", where=str(path), advice=_FORMATS) from None


def _require_size(size: int, where: str) -> None:
    if size > MAX_RECORD_BYTES:
        raise BadInput(f"has more than {MAX_RECORD_BYTES:,} bytes", where=where, advice=_FORMATS)


def _records(data: bytes, where: str) -> Iterator[Mapping[str, Any]]:
    try:
        document = strict_loads(data)
    except DecodeError:
        try:  # advisories may hold integers past 2**53; nothing is computed from them
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"is not an OSV record: {error}", where=where, advice=_FORMATS) from None
    for record in document if isinstance(document, list) else [document]:
        if not isinstance(record, dict) or not isinstance(record.get("id"), str):
            raise BadInput("is not an OSV record: it has no id", where=where, advice=_FORMATS)
        yield record


def _vulnerability(record: Mapping[str, Any], where: str, wanted: frozenset[Key]) -> Vulnerability | None:
    try:
        if record.get("withdrawn"):
            return None
        affected = tuple(entry for entry in record.get("affected") or () if key_of(entry) in wanted)
        if not affected:
            return None
        severity = [str(entry["score"]) for entry in record.get("severity") or ()]
        severity += [str((record.get("database_specific") or {}).get("severity") or "")]
        aliases = (*(record.get("aliases") or ()), *(record.get("upstream") or ()))
        summary = str(record.get("summary") or record.get("details") or "")
        return Vulnerability(
            record["id"],
            tuple(map(str, aliases)),
            summary,
            next(filter(None, reversed(severity)), ""),
            affected,
        )
    except (TypeError, AttributeError, KeyError) as error:
        raise BadInput(f"is a malformed OSV record: {error!r:.80}", where=where) from None


def key_of(entry: Mapping[str, Any]) -> Key | None:
    """Return the package of an entry; None for an entry that is only about commits."""
    package = entry.get("package")
    if not package:
        return None
    ecosystem = str(package["ecosystem"]).partition(":")[0]
    return ecosystem, normal(package["name"]) if ecosystem == "PyPI" else str(package["name"])


@dataclass(frozen=True, slots=True)
class Affected:
    """A vulnerability affects a package: the versions that fix it, and doubts about the decision."""

    fixed: tuple[str, ...]
    undecided: str | None = None  # why the version could not be compared, so that it counts as affected


def affects(vulnerability: Vulnerability, package: Package) -> Affected | None:
    """Decide whether a vulnerability affects a package; None if it does not.

    A version that cannot be compared counts as affected, so that a scan never passes by mistake.
    """
    entries = [entry for entry in vulnerability.affected if _is_about(entry, package)]
    ranges = [r for entry in entries for r in entry.get("ranges") or () if r.get("type") != "GIT"]
    fixed = tuple(str(event["fixed"]) for r in ranges for event in r.get("events") or () if "fixed" in event)
    order = _order_of(package)
    try:
        version = order(package.version)
        listed = any(
            _equal(order, version, text, package) for entry in entries for text in entry.get("versions") or ()
        )
        if listed or any(_in_range(r, version, order) for r in ranges):
            return Affected(fixed)
        return None
    except (ValueError, InvalidVersion) as error:
        return Affected(fixed, str(error))


def _is_about(entry: Mapping[str, Any], package: Package) -> bool:
    """Whether an entry is about this package in this release; an unknown release matches every entry."""
    if key_of(entry) != package.key:
        return False
    theirs, ours = str(entry["package"]["ecosystem"]).partition(":")[2], package.ecosystem.partition(":")[2]
    return not theirs or not ours or theirs == ours


def _order_of(package: Package) -> Callable[[str], Any]:
    if package.key[0] == "PyPI":
        return lambda text: Version(Version(text).public)  # 2.11.0+cu130 is a build of 2.11.0
    return semantic_version if package.key[0] == "crates.io" else debian_version


_SEMANTIC = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)


def semantic_version(text: str) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
    """Return the sort key of a version, by https://semver.org; ValueError for another form."""
    match = _SEMANTIC.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.40} is not a semantic version")
    major, minor, patch, before = match.groups()
    parts = before.split(".") if before else []
    words = tuple((False, int(part), "") if part.isdigit() else (True, 0, part) for part in parts)
    return int(major), int(minor), int(patch), before is None, words


def _equal(order: Callable[[str], Any], version: Any, text: str, package: Package) -> bool:
    try:
        return bool(order(text) == version)
    except (ValueError, InvalidVersion):  # an old version that follows no order: equal if spelt alike
        return text == package.version


def _in_range(entry: Mapping[str, Any], version: Any, order: Callable[[str], Any]) -> bool:
    """Walk the events of a range in the order of their versions, as OSV's specification says."""
    events = [(kind, str(text)) for event in entry.get("events") or () for kind, text in event.items()]
    if any(kind == "limit" and text != "*" and version >= order(text) for kind, text in events):
        return False
    inside = False
    for kind, text in _sorted(events, order):
        reached = text == "0" or version >= order(text)
        if kind == "introduced" and reached:
            inside = True
        elif (kind == "fixed" and reached) or (
            kind == "last_affected" and reached and version != order(text)
        ):
            inside = False
    return inside


def _sorted(events: Sequence[tuple[str, str]], order: Callable[[str], Any]) -> list[tuple[str, str]]:
    walked = [event for event in events if event[0] in ("introduced", "fixed", "last_affected")]
    first = [event for event in walked if event[1] == "0"]
    return first + sorted((event for event in walked if event[1] != "0"), key=lambda event: order(event[1]))

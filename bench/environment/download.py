"""Fetch files by digest: several at a time, each continued where an earlier attempt broke off.

A file is in the folder under the digest of its bytes, or it is not there: SHA256.part is incomplete.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.environment.package_index import REFUSALS, OfferedFile, PackageIndex
from bench.environment.pip_settings import masked

AT_ONCE = 8  # files that are downloaded at a time
_ATTEMPTS = 4  # at a file that breaks off
_CHUNK = 2**18  # bytes
_PROBE_SECONDS, _PROBE_BYTES = 3.0, 8 * 2**20  # of a download that measures a line
_LEAST_BYTES = 2**20  # of a download that takes less than a second, to say something of the line


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A wheel to fetch: its accepted digests, and the places that offer it, the best one first."""

    project: str
    sha256: frozenset[str]
    offers: tuple[OfferedFile, ...]


class NotFetched(Exception):
    """No place gave a file with an accepted digest; the text says why."""


def fetch_all(
    wanted: Sequence[WantedFile], index: PackageIndex, folder: Path, advance: Callable[[int], object]
) -> tuple[Mapping[str, Path], Mapping[str, str]]:
    """Fetch all files; return their paths, and the reasons of those that no place has, by project.

    `advance` is called with the number of bytes that arrived, from several threads.
    """
    paths: dict[str, Path] = {}
    refused: dict[str, str] = {}

    def one(file: WantedFile) -> None:
        try:
            paths[file.project] = _fetch(file, index, folder, advance)
        except NotFetched as error:
            refused[file.project] = str(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, wanted))
    return paths, refused


def measured_rate(file: OfferedFile, index: PackageIndex) -> float | None:
    """Return the bytes per second at which a file begins to arrive; None if it is too small, or does not."""
    with suppress(*REFUSALS), index.open(file.url) as answer:
        began, count = time.monotonic(), 0
        while (data := answer.read(_CHUNK)) and count < _PROBE_BYTES:
            count += len(data)
            if time.monotonic() - began > _PROBE_SECONDS:
                break
        seconds = max(time.monotonic() - began, 1e-6)
        return count / seconds if count >= _LEAST_BYTES or seconds >= 1 else None
    return None


def _fetch(file: WantedFile, index: PackageIndex, folder: Path, advance: Callable[[int], object]) -> Path:
    reasons = []
    for offer in file.offers:
        try:
            return _fetch_from(offer, file.sha256, index, folder, advance)
        except NotFetched as error:
            reasons.append(str(error))
    raise NotFetched("; ".join(dict.fromkeys(reasons)) or "no index has it")


def _fetch_from(
    offer: OfferedFile,
    accepted: frozenset[str],
    index: PackageIndex,
    folder: Path,
    advance: Callable[[int], object],
) -> Path:
    """Fetch a file from one place, in several attempts if it breaks off."""
    part = folder / f"{offer.sha256 or f'{threading.get_ident():x}'}.part"
    if offer.sha256 is None:
        part.unlink(missing_ok=True)  # of another file
    why = ""
    for attempt in range(_ATTEMPTS):
        try:
            for count in _continue(offer, index, part):
                advance(count)
        except REFUSALS as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise EnvironmentCannot(
                    "its disk is full", where=str(folder), advice="free some space on the node and push again"
                ) from None
            why = masked(str(getattr(error, "reason", None) or error) or type(error).__name__)
            time.sleep(0.2 * 4**attempt if attempt < _ATTEMPTS - 1 else 0)
            continue
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 in accepted:
            return part.rename(folder / sha256)
        part.unlink()
        raise NotFetched(f"{offer.name} of {masked(offer.url)} has the sha256 {sha256[:16]}…, not the lock's")
    part.unlink(missing_ok=True)
    raise NotFetched(f"{masked(offer.url)} broke off {_ATTEMPTS} times: {why}")


def _continue(offer: OfferedFile, index: PackageIndex, part: Path) -> Iterator[int]:
    """Append to `part` what it lacks of a file; yield the bytes of each piece."""
    start = part.stat().st_size if part.exists() else 0
    try:
        answer = index.open(offer.url, start)
    except REFUSALS:
        if not start:
            raise
        start = 0
        answer = index.open(offer.url)
    with answer, part.open("ab" if start else "wb") as file:
        stated = answer.headers.get("Content-Length")  # type: ignore[attr-defined]
        left = int(stated) - (start if offer.url.startswith("file:") else 0) if stated else None
        while data := answer.read(_CHUNK):
            file.write(data)
            yield len(data)
            left = None if left is None else left - len(data)
        if left:
            raise OSError(f"{left} bytes are missing at the end")

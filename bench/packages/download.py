"""Fetch files by digest: several at a time, each continued where an earlier attempt broke off.

A file is in the folder under the digest of its bytes, or it is not there: SHA256.part is incomplete, and
SHA256.part.TOKEN is being written. Several processes may fetch the same files into one folder.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.packages.connection import REFUSALS, host, reason, require_whole
from bench.packages.errors import CannotDownload, NotFetched, Paused
from bench.packages.package_index import OfferedFile, PackageFile, PackageIndex

AT_ONCE = 8  # files that are downloaded at a time
_ATTEMPTS = 4  # in a row with less than _LITTLE_BYTES each; after them a place is given up
_LITTLE_BYTES = 2**16
_FIRST_PAUSE_SECONDS = 0.2  # after an attempt; each further one is four times as long
_LARGEST_BYTES = 8 * 2**30  # of a file whose size is unknown
_CHUNK = 2**18  # bytes
_CONTINUES, _CANNOT_CONTINUE = 206, 416  # answers to a request for the rest of a file
_PROBE_SECONDS, _PROBE_BYTES = 3.0, 8 * 2**20  # of a download that measures a line
_LEAST_BYTES = 2**20  # of a download that takes less than a second, to say something of the line


class WantedFile(NamedTuple):
    """A file to fetch: its accepted digests, and the places that offer it, the best one first."""

    name: str  # by which the caller knows it
    sha256: frozenset[str]
    offers: Iterable[OfferedFile]  # iterated when the file's turn has come, and may ask an index then
    size: int | None = None  # bytes, as the lock says; None: it does not

    @classmethod
    def of(cls, file: PackageFile, index: PackageIndex) -> WantedFile:
        """Return what to download for a package file, with the places where `index` offers it."""
        return cls(file.name, frozenset({file.sha256}), index.offers(file), file.size)


def fetch_all(
    wanted: Sequence[WantedFile],
    index: PackageIndex,
    folder: Path,
    advance: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Path], dict[str, str]]:
    """Fetch files until `index` is out of time; return the paths of the fetched ones by name.

    The second value says by name why files that no place has were not fetched. Large files are fetched first.
    `advance` is called with the number of bytes that arrived, from several threads.
    """
    fetching = _Fetching(index, folder, advance)
    paths: dict[str, Path] = {}
    refused: dict[str, str] = {}

    def fetch(file: WantedFile) -> None:
        try:
            paths[file.name] = fetching.fetch(file)
        except NotFetched as error:
            refused[file.name] = str(error)
        except Paused:
            pass

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, sorted(wanted, key=lambda file: -(file.size or 0))))
    return paths, refused


def measured_rate(file: OfferedFile, index: PackageIndex) -> float | None:
    """Return the bytes per second at which a file begins to arrive; None if it fails or is too small."""
    try:
        with index.open(file.url) as answer:
            read = getattr(answer, "read1", answer.read)
            began, count = time.monotonic(), 0
            while count < _PROBE_BYTES and time.monotonic() - began < _PROBE_SECONDS:
                data = read(_CHUNK)
                if not data:
                    break
                count += len(data)
            seconds = max(time.monotonic() - began, 1e-6)
    except REFUSALS:
        return None
    return count / seconds if count >= _LEAST_BYTES or seconds >= 1 else None


@dataclass(frozen=True)  # slots need Python 3.10
class _Fetching:
    """Downloads files into one folder. Several threads may call its methods."""

    index: PackageIndex
    folder: Path
    advance: Callable[[int], object]

    def fetch(self, file: WantedFile) -> Path:
        """Return a file's path, after downloading it from the first place that has it; else NotFetched."""
        reasons = []
        for offer in file.offers:
            accepted = file.sha256 if offer.sha256 is None else file.sha256 & {offer.sha256}
            if not accepted:
                continue
            if offer.sha256 is not None and (self.folder / offer.sha256).exists():
                return self.folder / offer.sha256
            try:
                with self._own_part(min(accepted)) as part:
                    sha256 = self._fetch_from(offer, file._replace(sha256=accepted), part)
                    if sha256 in accepted:
                        return part.replace(self.folder / sha256)
                reasons.append(f"{host(offer.url)} has another file under this name, not the lock's")
            except REFUSALS as error:
                reasons.append(f"{host(offer.url)}: {reason(error)}")
        for digest in file.sha256:
            (self.folder / f"{digest}.part").unlink(missing_ok=True)
        nowhere = ("no index, folder or mirror lists it", *self.index.troubles)
        raise NotFetched("; ".join(dict.fromkeys(reasons or nowhere)))

    @contextmanager
    def _own_part(self, sha256: str) -> Iterator[Path]:
        """Yield the incomplete file under a name of this process's own; give it its shared name afterwards.

        If several processes want the same incomplete file, one gets it, and the others start from zero.
        """
        shared = self.folder / f"{sha256}.part"
        own = self.folder / f"{sha256}.part.{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            shared.replace(own)
        try:
            yield own
        finally:
            with suppress(FileNotFoundError):
                own.replace(shared)

    def _fetch_from(self, offer: OfferedFile, file: WantedFile, part: Path) -> str:
        """Write a file from one place to `part`, in as many pieces as it takes; return its digest."""
        failures, restarted = 0, False
        while True:
            start = part.stat().st_size if part.exists() else 0
            try:
                self._append(offer, file, part, start)
            except (OSError, http.client.HTTPException) as error:
                self._require_room(error)
                code = getattr(error, "code", 500)
                if code == _CANNOT_CONTINUE and start:
                    part.unlink()
                elif code < 500 or offer.url.startswith("file:"):  # trying again would not help
                    raise
                grown = part.stat().st_size - start if part.exists() else 0
                failures = 0 if grown >= _LITTLE_BYTES else failures + 1
                if failures == _ATTEMPTS:
                    raise OSError(f"it broke off {_ATTEMPTS} times: {reason(error)}") from None
                self.index.pause(_FIRST_PAUSE_SECONDS * 4 ** (failures - 1) if failures else 0.0)
                continue
            sha256 = _sha256(part)
            if sha256 in file.sha256:
                return sha256
            part.unlink()
            if restarted or start == 0:  # what came from here is another file
                return sha256
            restarted = True  # the part may have been damaged before

    def _append(self, offer: OfferedFile, file: WantedFile, part: Path, start: int) -> None:
        """Append the bytes of a file from `start` on; a server that cannot do that sends all of them."""
        stated = offer.size if offer.size and offer.size < _LARGEST_BYTES else None
        most = file.size or stated or _LARGEST_BYTES
        limit = "the file in the lock" if file.size else "its index says" if stated else "8 GiB"
        if start == most:
            return
        with self.index.open(offer.url, start if start < most else 0) as answer:
            read = getattr(answer, "read1", answer.read)
            with part.open("ab" if getattr(answer, "status", None) == _CONTINUES else "wb") as out:
                begun = out.tell()
                while data := read(_CHUNK):
                    out.write(data)
                    self.advance(len(data))
                    if out.tell() > most:
                        raise ValueError(f"it is larger than {limit}")
                    self.index.pause()
                require_whole(answer, out.tell() - begun)

    def _require_room(self, error: Exception) -> None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space on the node and push again"
            raise CannotDownload("its disk is full", where=str(self.folder), advice=advice) from None


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            total.update(chunk)
    return total.hexdigest()

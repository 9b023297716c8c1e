"""Ask package indexes, folders of links and Debian mirrors for the files of a package (PEP 503, 691)."""

from __future__ import annotations

import html
import json
import math
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.packages.apt_sources import pool_url
from bench.packages.connection import REFUSALS, UrlOpener, is_temporary, reason, require_whole
from bench.packages.errors import Paused
from bench.packages.pip_settings import PipSettings, masked

_MOST_PAGE_BYTES = 64 * 2**20
_PAGE_SECONDS = 120.0  # of a page, after which a server that sends a byte now and then counts as silent
_CHUNK = 2**18  # bytes
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_LINK = re.compile(r"<a\b[^<>]*?\bhref\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_SHA256 = re.compile(r"(?:^|&)sha256=([^&]*)")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_AGAIN_SECONDS = 0.5  # until a page that broke off is asked for a second time
_LACKS = (404, 410)  # answers of an index that does not have a project
_FORBIDS = 403  # of an index that wants a login, or, on S3, of one that does not have a project


def normal(name: str) -> str:
    """Return a project's name in normalised form (PEP 503), in which equal projects have equal names."""
    return re.sub(r"[-_.]+", "-", name).lower()


class PackageFile(NamedTuple):
    """A wheel, by its file name, or a Debian package, by its path below pool/main."""

    name: str
    sha256: str
    size: int | None  # bytes; None: unknown

    @property
    def is_wheel(self) -> bool:
        """Whether the file is for Python, and not a package of Debian's."""
        return self.name.endswith(".whl")

    @property
    def project(self) -> str:
        """The normalised name of a wheel's project."""
        return normal(self.name.split("-")[0])


class OfferedFile(NamedTuple):
    """A file that an index, a folder of links or a mirror offers."""

    url: str
    sha256: str | None  # as the place states it; None: it does not
    size: int | None = None  # in bytes; None: the place does not say

    @property
    def name(self) -> str:
        """File name at the end of the URL, decoded."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path).rpartition("/")[2]


class PackageIndex:
    """The package indexes, folders of links and mirrors that a machine's settings name.

    Many threads may call its methods. They raise Paused once `seconds` have passed since it was made.
    """

    def __init__(self, settings: PipSettings, mirrors: Sequence[str] = (), seconds: float = math.inf) -> None:
        self._settings, self._mirrors = settings, mirrors
        self._until = time.monotonic() + seconds
        self._opener = UrlOpener(settings, (*settings.indexes, *settings.find_links, *mirrors))
        self._lock = threading.Lock()
        self._links: list[OfferedFile] | None = None
        self._silent: dict[str, str] = {}  # why a place does not answer, and is not asked again, by its URL
        self._forbidding: dict[str, str] = {}
        self._answering: set[str] = set()  # places that gave a page

    @property
    def troubles(self) -> tuple[str, ...]:
        """The places that did not answer, each with the reason; without passwords."""
        named = sorted({**self._forbidding, **self._silent}.items())  # a copy: other threads add to both
        return tuple(
            f"{masked(url)}: {why}" for url, why in named if url in self._silent or url not in self._answering
        )

    def files(self, project: str) -> list[OfferedFile]:
        """Return the files of a project: those of links, then those of the first index, and so on."""
        return [file for page in self._pages(project) for file in page]

    def offers(self, file: PackageFile) -> Iterator[OfferedFile]:
        """Yield where a file may be: files with its digest first, then those with its name and no digest."""
        if not file.is_wheel:
            yield from (OfferedFile(pool_url(mirror, file.name), None) for mirror in self._mirrors)
            return
        named = []
        for offered in (offered for page in self._pages(file.project) for offered in page):
            if offered.sha256 == file.sha256:
                yield offered
            elif offered.sha256 is None and offered.name == file.name:
                named.append(offered)
        yield from named

    def open(self, url: str, start: int = 0) -> Any:
        """Open a file from byte `start` on, with status 206, or from its beginning; else one of REFUSALS."""
        self.pause()
        return self._opener.open(url, {"Range": f"bytes={start}-"} if start else {})

    def size(self, file: OfferedFile) -> int | None:
        """Return a file's size, by a HEAD request if the index did not state it; None if it is unknown."""
        if file.size is not None:
            return file.size
        try:
            with self._opener.open(file.url, {}, "HEAD") as answer:
                return int(answer.headers["Content-Length"])
        except (*REFUSALS, TypeError):  # TypeError: a head without a length
            return None

    def pause(self, seconds: float = 0.0) -> None:
        """Wait for `seconds`; raise Paused at once if the time of this index ends before that."""
        if time.monotonic() + seconds >= self._until:
            raise Paused
        time.sleep(seconds)

    def _pages(self, project: str) -> Iterator[list[OfferedFile]]:
        yield self._files_of_links()
        for index in self._settings.indexes:
            yield self._page(f"{index.rstrip('/')}/{project}/", index)

    def _files_of_links(self) -> list[OfferedFile]:
        with self._lock:
            if self._links is None:
                pages = [self._page(place, place) for place in self._settings.find_links]
                self._links = [file for page in pages for file in page]
            return self._links

    def _page(self, url: str, place: str, *, again: bool = True) -> list[OfferedFile]:
        """Return the files that a page or folder lists, empty if it does not exist. `place`: its index."""
        if place in self._silent:
            return []
        self.pause()
        try:
            path = _local_path(url)
            files = self._read(url) if path is None else self._local_files(path)
        except REFUSALS as error:
            if again and is_temporary(error):
                self.pause(_AGAIN_SECONDS)
                return self._page(url, place, again=False)
            code = getattr(error, "code", None)
            if code not in _LACKS and (code is None or place not in self._answering):
                (self._forbidding if code == _FORBIDS else self._silent)[place] = reason(error)
            return []
        self._answering.add(place)
        return files

    def _local_files(self, path: Path) -> list[OfferedFile]:
        """Return the files in a folder of this machine, and those that its page, or this page, links to."""
        files, page = [], path
        if path.is_dir():
            paths = sorted(each for each in path.iterdir() if each.is_file())
            files = [OfferedFile(each.absolute().as_uri(), None, each.stat().st_size) for each in paths]
            page = path / "index.html"
        return files + (self._read(page.absolute().as_uri()) if page.is_file() else [])

    def _read(self, url: str) -> list[OfferedFile]:
        with self._opener.open(url, {"Accept": _ACCEPT}) as answer:
            data, base = self._whole(answer), answer.geturl()
            is_json = "json" in str(answer.headers.get("Content-Type"))
        found = []
        for link, sha256, size in _in_json(data) if is_json else _in_html(data):
            file = self._opener.linked(base, link)
            if file is not None:
                found.append(OfferedFile(file, sha256 if _DIGEST.fullmatch(sha256) else None, size))
        return found

    def _whole(self, answer: Any) -> bytes:
        """Return the bytes of a page; ValueError or TimeoutError if it is too large or takes too long."""
        read, data = getattr(answer, "read1", answer.read), bytearray()
        until = time.monotonic() + _PAGE_SECONDS
        while piece := read(_CHUNK):
            data += piece
            if len(data) > _MOST_PAGE_BYTES:
                raise ValueError(f"its page is larger than {_MOST_PAGE_BYTES // 2**20} MiB")
            if time.monotonic() > until:
                raise TimeoutError(f"its page takes longer than {_PAGE_SECONDS:.0f} s")
            self.pause()
        require_whole(answer, len(data))
        return bytes(data)


def _local_path(place: str) -> Path | None:
    """Return the path on this machine that a place of pip's names; None if it names something else."""
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if "://" in place else Path(place)


def _in_json(data: bytes) -> Iterator[tuple[str, str, int | None]]:
    """Yield link, sha256 or an empty text, and size of each file on a page (PEP 691, 700)."""
    try:
        for file in json.loads(data)["files"]:
            size, sha256 = file.get("size"), (file.get("hashes") or {}).get("sha256") or ""
            yield str(file["url"]), str(sha256).lower(), size if isinstance(size, int) and size > 0 else None
    except (LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError("its page is not one of a package index") from None


def _in_html(data: bytes) -> Iterator[tuple[str, str, int | None]]:
    """Yield link and sha256, or an empty text, of each file on a page (PEP 503)."""
    for link in _LINK.finditer(data.decode("utf-8", "replace")):
        url, _, fragment = html.unescape(link[1] or link[2] or "").partition("#")
        digest = _SHA256.search(fragment)
        yield url, digest[1].lower() if digest else "", None

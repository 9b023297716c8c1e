"""Ask package indexes and folders of links which files they have of a package (PEP 503, 691).

Passwords come from the URLs of pip's settings and from ~/.netrc, and go to their own host alone.
"""

from __future__ import annotations

import base64
import html
import http.client
import json
import netrc
import os
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.base.errors import EnvironmentCannot
from bench.environment.pip_settings import PipSettings, masked

SILENCE_SECONDS = 20.0  # of an index, after which it counts as unreachable
_MOST_PAGE_BYTES = 64 * 2**20
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_LINK = re.compile(r"<a\b[^>]*?\bhref\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
# Errors of a URL that does not answer as it should.
REFUSALS = (OSError, ValueError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A file that an index or a folder of links offers."""

    url: str
    sha256: str | None  # as the index states it; None: it does not
    size: int | None = None  # in bytes; None: the index does not say

    @property
    def name(self) -> str:
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path.rpartition("/")[2])


class PackageIndex:
    """The indexes and folders of links of a machine's settings. Many threads may call its methods."""

    def __init__(self, settings: PipSettings, home: Path) -> None:
        self._settings = settings
        self._netrc = _read_netrc(home)
        self._passwords = _passwords_of(settings)
        self._open = _opener(settings)
        self._lock = threading.Lock()
        self._links: list[OfferedFile] | None = None
        self._silent: dict[str, str] = {}  # why an index does not answer, by its URL

    @property
    def troubles(self) -> tuple[str, ...]:
        """The indexes that did not answer, each with the reason; without passwords."""
        return tuple(f"{masked(url)}: {why}" for url, why in sorted(self._silent.items()))

    def files(self, project: str) -> list[OfferedFile]:
        """Return the files of a project, those of the first index first."""
        found = [*self._files_of_links()]
        for index in self._settings.indexes:
            if index in self._silent:
                continue
            found += self._page(f"{index.rstrip('/')}/{project}/", index)
        return found

    def open(self, url: str, start: int = 0) -> IO[bytes]:
        """Open a file from byte `start` on; one of REFUSALS if it does not answer, or cannot start there."""
        headers = {"User-Agent": "bench", "Accept": "*/*"}
        if start:
            headers["Range"] = f"bytes={start}-"
        answer = self._request(url, headers)
        if start and url.startswith("file:"):
            answer.seek(start)
        elif start and getattr(answer, "status", None) != http.client.PARTIAL_CONTENT:
            answer.close()
            raise ValueError("it cannot continue a download")
        return answer

    def size(self, file: OfferedFile) -> int | None:
        """Return a file's size, by asking for its head if the index did not state it."""
        if file.size is not None:
            return file.size
        with suppress(*REFUSALS), self._request(file.url, {"User-Agent": "bench"}, "HEAD") as answer:
            return int(answer.headers["Content-Length"])  # type: ignore[attr-defined]
        return None

    # --- pages --------------------------------------------------------------------------------------------

    def _files_of_links(self) -> list[OfferedFile]:
        with self._lock:
            if self._links is None:
                self._links = [file for place in self._settings.find_links for file in self._linked(place)]
            return self._links

    def _linked(self, place: str) -> list[OfferedFile]:
        path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(place).path))
        if not place.startswith(("http:", "https:")) and path.is_dir():
            wheels = sorted(path.glob("*.whl"))
            return [OfferedFile(each.absolute().as_uri(), None, each.stat().st_size) for each in wheels]
        url = place if "://" in place else path.absolute().as_uri()
        return self._page(url, place)

    def _page(self, url: str, index: str) -> list[OfferedFile]:
        """Return the files that a page lists; a page that the index does not have lists none."""
        if url.startswith("file:") and url.endswith("/"):
            url += "index.html"
        try:
            with self._request(url, {"User-Agent": "bench", "Accept": _ACCEPT}) as answer:
                kind = str(answer.headers.get("Content-Type"))  # type: ignore[attr-defined]
                data = answer.read(_MOST_PAGE_BYTES)
                base = answer.geturl()  # type: ignore[attr-defined]
            return list(_in_json(data, base) if "json" in kind else _in_html(data, base))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (http.client.NOT_FOUND, http.client.GONE):
                self._silent[index] = _why(error)
        except REFUSALS as error:
            if not (url.startswith("file:") and "No such file" in str(error)):
                self._silent[index] = _why(error)
        return []

    # --- requests -----------------------------------------------------------------------------------------

    def _request(self, url: str, headers: Mapping[str, str], method: str = "GET") -> IO[bytes]:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(
            parts._replace(netloc=host).geturl(), None, dict(headers), method=method
        )
        if login := self._login(url, host, parts.hostname or ""):
            # Not kept when a server redirects to another host.
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
        answer: IO[bytes] = self._open.open(request, timeout=SILENCE_SECONDS)
        return answer

    def _login(self, url: str, host: str, machine: str) -> bytes | None:
        own, at, _ = urllib.parse.urlsplit(url).netloc.rpartition("@")
        login = own if at else self._passwords.get(host)
        if login:
            return urllib.parse.unquote(login).encode()
        found = self._netrc.authenticators(machine) if self._netrc else None
        return f"{found[0]}:{found[2] or ''}".encode() if found else None


def _passwords_of(settings: PipSettings) -> dict[str, str]:
    """Return the user name and password of each host that a URL of the settings has one for."""
    found = {}
    for url in (*settings.indexes, *settings.find_links):
        login, at, host = urllib.parse.urlsplit(url).netloc.rpartition("@")
        if at:
            found[host] = login
    return found


def _read_netrc(home: Path) -> netrc.netrc | None:
    with suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC") or str(home / ".netrc"))
    return None


def _opener(settings: PipSettings) -> urllib.request.OpenerDirector:
    """Return what opens URLs with the settings' proxy and certificates; variables name a proxy otherwise."""
    handlers: list[Any] = []
    if settings.proxy:
        proxy = settings.proxy if "://" in settings.proxy else f"http://{settings.proxy}"
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    try:
        context = ssl.create_default_context(cafile=settings.certificates)
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate)
    except OSError as error:
        where = settings.certificates or settings.client_certificate
        message = f"certificates that pip's configuration names cannot be read: {error.strerror or error}"
        raise EnvironmentCannot(
            message, where=where, advice="correct `cert` in pip's configuration"
        ) from None
    handlers.append(_Trusting(settings.trusted_hosts, context))
    return urllib.request.build_opener(*handlers)


class _Trusting(urllib.request.HTTPSHandler):
    """Opens https URLs; the certificates of some hosts are not checked, as pip's trusted-host says."""

    def __init__(self, hosts: tuple[str, ...], context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._hosts = hosts
        self._unchecked = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        if {request.host, request.host.partition(":")[0]} & {*self._hosts}:
            return self._unchecked.https_open(request)
        return super().https_open(request)


def _why(error: BaseException) -> str:
    """Say in a few words why a URL did not answer, without passwords."""
    if isinstance(error, urllib.error.HTTPError):
        login = ", it asks for another user name or password" if error.code in (401, 403) else ""
        return f"{error.code} {error.reason}{login}"
    if isinstance(error, urllib.error.HTTPError | urllib.error.URLError):
        reason = error.reason
        return masked(str(getattr(reason, "strerror", None) or reason))[:200]
    return masked(str(error) or type(error).__name__)[:200]


def _in_json(data: bytes, base: str) -> Iterator[OfferedFile]:
    for file in json.loads(data)["files"]:
        url = urllib.parse.urljoin(base, str(file["url"]))
        size = file.get("size")
        yield OfferedFile(
            url, (file.get("hashes") or {}).get("sha256"), size if isinstance(size, int) else None
        )


def _in_html(data: bytes, base: str) -> Iterator[OfferedFile]:
    for link in _LINK.finditer(data.decode("utf-8", "replace")):
        url, _, fragment = urllib.parse.urljoin(base, html.unescape(link[1] or link[2])).partition("#")
        _, named, sha256 = fragment.partition("sha256=")
        yield OfferedFile(url, sha256.lower() if named else None)

"""Download wheels and Debian packages by sha256, from the places that this machine's pip and apt look into.

Imports the standard library only, and runs on Python 3.9: `bench push` sends this file to nodes. A login
comes from pip's configuration or ~/.netrc, goes only to its own host, and is never part of a message.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html
import http.client
import json
import netrc
import os
import re
import ssl
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_CHUNK = 2**18  # bytes
_SILENCE_SECONDS = 20.0  # of a server, after which the connection is given up
_ATTEMPTS = 4  # in a row that bring nothing new, after which a location is given up
_PAGE_BYTES = 64 * 2**20  # of an index page, at most
_LARGEST_BYTES = 8 * 2**30  # of a file whose size is unknown
_AT_ONCE = 8  # downloads
_JSON = "application/vnd.pypi.simple.v1+json"
_LINK = re.compile(r"""<a[^>]+href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


class PackageFile(NamedTuple):
    """A wheel, by its file name, or a Debian package, by its path below pool/main."""

    name: str
    sha256: str
    size: int | None  # bytes; None: unknown

    @property
    def is_wheel(self) -> bool:
        return self.name.endswith(".whl")

    @property
    def project(self) -> str:
        """The normalised name (PEP 503) of a wheel's project."""
        return normal(self.name.split("-")[0])


class Places(NamedTuple):
    """Where package files are looked for, and how this machine reaches these places."""

    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # folders, or pages of links
    mirrors: tuple[str, ...] = ()  # of Debian
    proxy: str = ""  # empty: the proxies of the environment
    certificates: str = ""  # file of certificate authorities; empty: the system's


class Paused(Exception):
    """The time for this round of downloads is over. What has arrived is kept, and continued later."""


class NotFound(Exception):
    """No place has the file with this digest; the text says what was found in its stead."""


def normal(name: str) -> str:
    """Normalise a project's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- configuration --------------------------------------------------------------------------------------


def configured(
    environment: Mapping[str, str],
    default_index: str,
    index: str = "",
    mirror: str = "",
    etc: Path = Path("/etc"),
) -> Places:
    """Return the places of this machine's pip and apt; `index` and `mirror`, if given, replace theirs."""
    options = _pip_options(environment, etc)
    indexes = [options.get("index-url") or default_index, *options.get("extra-index-url", "").split()]
    no_index = options.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return Places(
        indexes=(index,) if index else () if no_index else tuple(indexes),
        links=() if index else tuple(options.get("find-links", "").split()),
        mirrors=(mirror, f"{mirror}-security") if mirror else tuple(_apt_mirrors(etc / "apt")),
        proxy=options.get("proxy", ""),
        certificates=options.get("cert", "") or environment.get("REQUESTS_CA_BUNDLE", ""),
    )


def _pip_options(environment: Mapping[str, str], etc: Path) -> dict[str, str]:
    """Merge pip's options from its files and variables, in pip's order of precedence."""
    home, own = environment.get("HOME", "/"), environment.get("PIP_CONFIG_FILE", "")
    folders = environment.get("XDG_CONFIG_DIRS") or f"{etc}/xdg"
    paths = [*(f"{folder}/pip/pip.conf" for folder in folders.split(":")), f"{etc}/pip.conf"]
    if not (own and Path(own).exists()):
        paths += [
            f"{home}/.pip/pip.conf",
            f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip/pip.conf",
        ]
    paths = [] if own == os.devnull else [*paths, f"{sys.prefix}/pip.conf", *([own] if own else [])]
    files = configparser.RawConfigParser(strict=False)
    options: dict[str, str] = {}
    for path in paths:
        files.clear()
        try:
            files.read(path, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue  # pip itself refuses such a file; here it only offers no place
        for section in ("global", "download", "install"):
            if files.has_section(section):
                options.update(files.items(section))
    names = ("index-url", "extra-index-url", "find-links", "no-index", "proxy", "cert")
    variables = {name: environment.get(f"PIP_{name.upper().replace('-', '_')}", "") for name in names}
    return {**options, **{name: value for name, value in variables.items() if value}}


def _apt_mirrors(folder: Path) -> Iterator[str]:
    """Yield the mirrors in apt's lists of sources, in both of their formats, each once."""
    seen = set()
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        try:
            text = path.read_text(errors="replace", encoding="utf-8")
        except OSError:
            continue
        lines = re.findall(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)", text, re.MULTILINE)
        fields = re.findall(r"^URIs:((?:.*\n?)(?:[ \t].*\n?)*)", text, re.MULTILINE | re.IGNORECASE)
        for word in [*lines, *(word for field in fields for word in field.split())]:
            url = word.rstrip("/")
            if url.startswith(("http://", "https://", "file:")) and url not in seen:
                seen.add(url)
                yield url


# --- connections ----------------------------------------------------------------------------------------


class Logins(urllib.request.BaseHandler):
    """Adds a login to requests, also redirected ones, to the very host that the login belongs to."""

    def __init__(self, home: str) -> None:
        self._headers: dict[tuple[str, str], str] = {}
        try:
            self._netrc: netrc.netrc | None = netrc.netrc(f"{home}/.netrc")
        except (OSError, netrc.NetrcParseError):
            self._netrc = None

    def without(self, url: str) -> str:
        """Remember the login in a URL, and return the URL without it."""
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        user, password = parts.username, parts.password
        if user is not None:
            words = urllib.parse.unquote(f"{user}:{password or ''}")
            self._headers[parts.scheme, host] = f"Basic {base64.b64encode(words.encode()).decode()}"
        elif self._netrc and (found := self._netrc.authenticators(parts.hostname or "")):
            words = f"{found[0]}:{found[2] or ''}"
            self._headers[parts.scheme, host] = f"Basic {base64.b64encode(words.encode()).decode()}"
        return urllib.parse.urlunsplit(parts._replace(netloc=host))

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        login = self._headers.get((request.type, request.host))
        if login:
            request.add_unredirected_header("Authorization", login)
        return request

    https_request = http_request


class Downloads:
    """Finds and downloads package files. Its methods are called from several threads."""

    def __init__(self, places: Places, home: str = "/") -> None:
        self._logins = Logins(home)
        self._places = places._replace(
            indexes=tuple(map(self._logins.without, places.indexes)),
            links=tuple(url if "://" not in url else self._logins.without(url) for url in places.links),
            mirrors=tuple(map(self._logins.without, places.mirrors)),
        )
        context = ssl.create_default_context(cafile=places.certificates or None)
        proxies = {"http": places.proxy, "https": places.proxy} if places.proxy else None
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context), self._logins
        )
        self._pages: dict[str, list[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def fetch_all(self, files: Iterable[PackageFile], folder: Path, seconds: float) -> dict[str, str]:
        """Download files into `folder` for `seconds`; return why a file is nowhere, by its sha256.

        A file that has arrived whole is folder/SHA256; a part of one is folder/SHA256.part. The largest begin
        first, so that a short round measures the speed of the line.
        """
        until = time.monotonic() + seconds
        wanted = [file for file in files if not (folder / file.sha256).exists()]
        wanted.sort(key=lambda file: -(file.size or 0))
        nowhere: dict[str, str] = {}

        def fetch_one(file: PackageFile) -> None:
            try:
                self.fetch(file, folder, until)
            except NotFound as error:
                nowhere[file.sha256] = str(error)
            except Paused:
                pass

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch_one, wanted))
        return nowhere

    def fetch(self, file: PackageFile, folder: Path, until: float) -> None:
        """Download one file from the first place that has it; NotFound if none has; Paused after `until`."""
        _pause(0.0, until)
        why = "no index, folder or mirror lists it"
        for url in self._locations(file, until):
            try:
                if self._get_whole(url, file, folder / f"{file.sha256}.part", until):
                    (folder / f"{file.sha256}.part").replace(folder / file.sha256)
                    return
                why = f"{_host(url)} has another file under this name"
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = f"{_host(url)}: {_reason(error)}"
        raise NotFound(why)

    def _get_whole(self, url: str, file: PackageFile, part: Path, until: float) -> bool:
        """Download a file in as many pieces as its server needs; return whether the digest is the file's."""
        failures = 0
        while True:
            start = part.stat().st_size if part.exists() else 0
            if file.size is not None and start > file.size:
                part.unlink()
                start = 0
            try:
                if file.size is None or start < file.size:
                    self._get(url, part, start, file.size or _LARGEST_BYTES, until)
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "code", 500) < 500:  # the server knows that it has no such file for us
                    raise
                grown = part.exists() and part.stat().st_size > start
                failures = 0 if grown else failures + 1
                if failures >= _ATTEMPTS:
                    raise
                _pause(failures * 0.2, until)
                continue
            if _sha256(part) == file.sha256:
                return True
            part.unlink()
            if start == 0:  # the whole file came from here: another location may have the right one
                return False

    def _get(self, url: str, part: Path, start: int, most: int, until: float) -> None:
        """Append the bytes of a URL from `start` on to a file; a server that cannot do that sends all."""
        _pause(0.0, until)
        request = urllib.request.Request(url, headers={"User-Agent": "bench"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        with self._opener.open(request, timeout=_SILENCE_SECONDS) as answer:
            continues = start > 0 and getattr(answer, "status", None) == 206
            expected = answer.headers.get("Content-Length")
            with part.open("ab" if continues else "wb") as out:
                begun = out.tell()
                while True:
                    if time.monotonic() >= until:
                        raise Paused
                    chunk = answer.read1(_CHUNK) if hasattr(answer, "read1") else answer.read(_CHUNK)
                    if not chunk:
                        break
                    out.write(chunk)
                    if out.tell() > most:
                        raise ValueError("it is larger than the file in the lock")
                if expected is not None and out.tell() - begun < int(expected):
                    raise OSError("the connection broke")

    # --- where a file is -------------------------------------------------------------------------------

    def _locations(self, file: PackageFile, until: float) -> Iterator[str]:
        """Yield URLs of a file: those with its digest first, then those with its name and no digest."""
        if not file.is_wheel:
            for mirror in self._places.mirrors:
                yield f"{mirror}/pool/{'updates/' if 'security' in mirror else ''}main/{file.name}"
            return
        named = []
        for page in (
            *self._places.links,
            *(f"{index.rstrip('/')}/{file.project}/" for index in self._places.indexes),
        ):
            _pause(0.0, until)
            for url, sha256 in self._links(page):
                name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
                if sha256 == file.sha256:
                    yield url
                elif not sha256 and name == file.name:
                    named.append(url)
        yield from named

    def _links(self, page: str) -> list[tuple[str, str]]:
        """Return URL and sha256, or "", of each file that a page or a folder lists; a page is read once."""
        with self._lock:
            if page in self._pages:
                return self._pages[page]
        try:
            links = list(self._read_links(page))
        except (OSError, http.client.HTTPException, ValueError):
            links = []  # as an index answers for a project that it does not have
        with self._lock:
            self._pages[page] = links
        return links

    def _read_links(self, page: str) -> Iterator[tuple[str, str]]:
        folder = _folder(page)
        if folder is not None:
            if not (folder / "index.html").exists():
                for path in folder.iterdir():
                    yield path.absolute().as_uri(), ""
                return
            page = (folder / "index.html").absolute().as_uri()
        request = urllib.request.Request(
            page, headers={"Accept": f"{_JSON}, text/html;q=0.5", "User-Agent": "bench"}
        )
        with self._opener.open(request, timeout=_SILENCE_SECONDS) as answer:
            data, base = answer.read(_PAGE_BYTES), answer.geturl() or page
            is_json = _JSON in (answer.headers.get("Content-Type") or "")
        if is_json:
            for file in json.loads(data)["files"]:
                yield self._joined(base, file["url"]), file.get("hashes", {}).get("sha256", "")
            return
        for link in _LINK.findall(data.decode("utf-8", "replace")):
            url, _, fragment = html.unescape(link).partition("#")
            digest = re.search(r"sha256=([0-9a-f]{64})", fragment)
            yield self._joined(base, url), digest[1] if digest else ""

    def _joined(self, base: str, url: str) -> str:
        return self._logins.without(urllib.parse.urljoin(base, url))


def _folder(page: str) -> Path | None:
    """Return the folder on this machine that a place of pip's names; None if it names something else."""
    parts = urllib.parse.urlsplit(page)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(urllib.parse.unquote(parts.path)).expanduser()
    return path if path.is_dir() else None


def _pause(seconds: float, until: float) -> None:
    """Wait, or raise Paused if the round ends before."""
    if time.monotonic() + seconds >= until:
        raise Paused
    time.sleep(seconds)


def _host(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or parts.path


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return f"{getattr(error, 'code', '')} {reason}".strip()[:200]


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            total.update(chunk)
    return total.hexdigest()

"""Open URLs with the proxy, the certificates and the logins of pip's settings.

A login comes from a URL of the settings, else from the file netrc. It is sent to its own host alone, and
never appears in a message.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.packages.errors import CannotDownload
from bench.packages.pip_settings import PipSettings, masked

_SILENCE_SECONDS = 20.0  # of a server, after which it counts as unreachable
# Errors raised by a URL that does not answer, or not as it should.
REFUSALS = (OSError, ValueError, http.client.HTTPException)


class UrlOpener:
    """Opens URLs. Many threads may call its methods."""

    def __init__(self, settings: PipSettings, places: Iterable[str]) -> None:
        self._logins = _Logins(settings.netrc, places)
        handlers: list[urllib.request.BaseHandler] = [self._logins, _Https(settings)]
        if settings.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy}))
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, url: str, headers: Mapping[str, str], method: str = "GET") -> Any:
        """Return the response of a URL, which may contain a login. Raises one of REFUSALS if none comes."""
        headers = {"User-Agent": "bench", **headers}
        request = urllib.request.Request(self._logins.without(url), None, headers, method=method)
        return self._opener.open(request, timeout=_SILENCE_SECONDS)

    def linked(self, base: str, link: str) -> str | None:
        """Return the URL that a page links to, without a login; None if a page must not link there.

        Only files of this machine link to files of this machine.
        """
        try:
            url = self._logins.without(urllib.parse.urljoin(base, link))
            scheme = urllib.parse.urlsplit(url).scheme
        except ValueError:
            return None
        return url if scheme in ("http", "https") or base.startswith("file:") else None


def require_whole(answer: Any, count: int) -> None:
    """Raise ConnectionError if fewer bytes came than the response states: http.client does not notice it."""
    stated = answer.headers.get("Content-Length") or ""
    if stated.isdigit() and count < int(stated):
        raise ConnectionError("the connection broke")


def is_temporary(error: Exception) -> bool:
    """Whether another attempt may succeed: the connection broke, or the server had an error of its own."""
    broken = isinstance(error, (ConnectionError, http.client.HTTPException))
    return broken or getattr(error, "code", 0) >= http.client.INTERNAL_SERVER_ERROR


def host(url: str) -> str:
    """Return the host of a URL, or the path of a file."""
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or parts.path


def reason(error: BaseException) -> str:
    """Say in a few words why a URL did not answer."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        asks = ", it asks for another user name or password" if code in (401, 403) else ""
        return f"{code} {http.client.responses.get(code, '')}".strip() + asks
    if isinstance(error, http.client.HTTPException):
        return f"it does not answer as a web server does ({type(error).__name__})"
    cause = getattr(error, "reason", None) or error
    return masked(str(getattr(cause, "strerror", None) or cause) or type(error).__name__)[:200]


class _Logins(urllib.request.BaseHandler):
    """Adds its login to each request to a host, also after a redirect; no other host gets the login."""

    def __init__(self, path: str, places: Iterable[str]) -> None:
        self._headers: dict[tuple[str, str], str] = {}  # by scheme and host
        self._netrc: netrc.netrc | None = None
        for place in places:
            with suppress(ValueError):  # a malformed URL is reported when it is opened
                self.without(place)
        # Like pip, ignore a file that cannot be read.
        with suppress(OSError, ValueError, netrc.NetrcParseError):
            self._netrc = netrc.netrc(path) if path else None

    def without(self, url: str) -> str:
        """Remember the login in a URL, unless its host has one already; return the URL without it."""
        parts = urllib.parse.urlsplit(url)
        if parts.username is None:
            return url
        address = parts.netloc.rpartition("@")[2]
        if self._header(parts.scheme, address) is None:
            words = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
            self._headers[parts.scheme, address.lower()] = _basic(*words)
        return parts._replace(netloc=address).geturl()

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        """Add the host's login to a request, if one is known; urllib calls this for every request."""
        header = self._header(request.type, request.host)
        if header is not None:
            request.add_unredirected_header("Authorization", header)
        return request

    https_request = http_request

    def _header(self, scheme: str, address: str) -> str | None:
        own = self._headers.get((scheme, address.lower()))
        if own is not None or self._netrc is None:
            return own
        found = self._netrc.authenticators(_hostname(address))
        return _basic(found[0], found[2] or "") if found else None


def _hostname(address: str) -> str:
    """Return the host of an address that may have a port."""
    return urllib.parse.urlsplit(f"//{address}").hostname or ""


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class _Https(urllib.request.HTTPSHandler):
    """Opens https URLs; the certificates of some hosts are not checked, as pip's trusted-host says."""

    def __init__(self, settings: PipSettings) -> None:
        self._settings, self._trusted = settings, {*settings.trusted_hosts}
        if settings.certificates:
            self._checked  # noqa: B018 - a file that cannot be read is refused before any URL is opened
        super().__init__(context=_unchecked_context(settings))

    @cached_property
    def _checked(self) -> urllib.request.HTTPSHandler:
        """Opens URLs and checks certificates; the first https URL reads the authorities, which takes long."""
        return urllib.request.HTTPSHandler(context=_checked_context(self._settings))

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a URL, and check its certificate unless the host is a trusted one."""
        # With a proxy, the host of the request is the proxy's.
        address = getattr(request, "_tunnel_host", None) or request.host
        if {address, _hostname(address)} & self._trusted:
            return super().https_open(request)
        return self._checked.https_open(request)


def _checked_context(settings: PipSettings) -> ssl.SSLContext:
    trusted = settings.certificates
    try:
        is_folder = trusted != "" and Path(trusted).is_dir()
        file, folder = (None, trusted) if is_folder else (trusted or None, None)
        context = ssl.create_default_context(cafile=file, capath=folder)
    except OSError as error:
        raise _unreadable(trusted, "`cert` in pip's configuration, or REQUESTS_CA_BUNDLE", error) from None
    return _with_client_certificate(context, settings)


def _unchecked_context(settings: PipSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _with_client_certificate(context, settings)


def _with_client_certificate(context: ssl.SSLContext, settings: PipSettings) -> ssl.SSLContext:
    own = settings.client_certificate
    try:
        if own:
            context.load_cert_chain(own)
    except OSError as error:
        raise _unreadable(own, "`client-cert` in pip's configuration", error) from None
    return context


def _unreadable(path: str, option: str, error: OSError) -> CannotDownload:
    message = f"certificates that pip's configuration names cannot be read: {error.strerror or error}"
    return CannotDownload(message, where=path, advice=f"correct {option}")

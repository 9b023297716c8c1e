"""Read and write one repository of a container registry, in the OCI distribution protocol.

Specification: https://github.com/opencontainers/distribution-spec (v1.1). Everything read by digest is hashed
and compared. A login is sent to the registry and to the token server that it names, and appears in no
message.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import ipaddress
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, VerificationFailed
from bench.base.stamps import sha256
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.images.registry_logins import Login
from bench.packages.connection import REFUSALS, is_temporary, reason, require_whole

MAX_MANIFEST_BYTES = 4 * 2**20  # the most that registries must accept
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LISTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_SILENCE_SECONDS = 60.0
_ATTEMPTS = 4  # to read a document or a blob; each attempt continues a blob where the last one broke off
_CHUNK = 2**20  # bytes
_MAX_TOKEN_BYTES = 2**20
_MAX_REFERENCE = 400  # characters
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
T = TypeVar("T")
_FORM = "HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry: by tag, by the digest of its manifest, or both."""

    host: str  # with the port, if one is given
    path: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return f"{self.host}/{self.path}"


def parse_reference(text: str) -> ImageReference:
    """Parse HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]; BadInput for a name without a host."""
    match = _REFERENCE.fullmatch(text) if len(text) <= _MAX_REFERENCE else None
    if match is None:
        raise BadInput("is not an image in a registry", where=text[:_MAX_REFERENCE], advice=f"write {_FORM}")
    found = ImageReference(**match.groupdict())
    port = re.search(r":([0-9]+)$", found.host)
    if port and not 0 < int(port[1]) < 2**16:
        raise BadInput(f"{port[1]} is not a port", where=text, advice=f"write {_FORM}")
    if not re.search(r"[.:]", found.host) and found.host != "localhost":
        raise BadInput("names no registry", where=text, advice=f"write {_FORM}")
    return found


def is_loopback(host: str) -> bool:
    """Whether a host with an optional port is this machine, whose registry may speak HTTP without TLS."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


class Registry:
    """One repository of a registry. Several threads may fetch from it."""

    def __init__(self, reference: ImageReference, login: Login | None, *, plain_http: bool = False) -> None:
        self._reference = reference
        local = is_loopback(reference.host)
        self._origin = f"{'http' if plain_http or local else 'https'}://{reference.host}"
        self._base = f"{self._origin}/v2/{reference.path}"
        # Over an unencrypted connection, others could read the login.
        self._login = login if local or not plain_http else None
        self._authorization: str | None = None
        self._logging_in = threading.Lock()
        self._opener = urllib.request.build_opener()

    def manifest(self, wanted: str) -> bytes | None:
        """Return the manifest of a tag or digest; None if the registry has none."""
        accepted = {"Accept": ", ".join((*MANIFESTS, *_LISTS))}
        try:
            data = self._read(f"manifests/{wanted}", accepted, MAX_MANIFEST_BYTES)
        except EnvironmentCannot as error:
            if getattr(error.__cause__, "code", None) == http.client.NOT_FOUND:
                return None
            raise
        return self._as_named(data, wanted) if wanted.startswith("sha256:") else data

    def small_blob(self, digest: str, most_bytes: int) -> bytes:
        """Return a blob; VerificationFailed if it has more than `most_bytes` or another digest."""
        return self._as_named(self._read(f"blobs/{digest}", {}, most_bytes), digest)

    def fetch(self, digest: str, size: int, out: Path) -> None:
        """Write a blob of `size` bytes to a new file; if the connection breaks, continue where it broke."""
        self._persistently(lambda: self._append(digest, size, out))
        with out.open("rb") as file:
            self._compare(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", digest)

    def _append(self, digest: str, size: int, out: Path) -> None:
        start = out.stat().st_size if out.exists() else 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._open("GET", f"{self._base}/blobs/{digest}", headers) as answer:
            continued = answer.status == http.client.PARTIAL_CONTENT
            with out.open("ab" if continued else "wb") as file:
                while file.tell() < size:
                    data = answer.read1(min(_CHUNK, size - file.tell()))
                    if not data:
                        raise ConnectionError("the connection broke")
                    file.write(data)

    def _read(self, path: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
        def once() -> bytes:
            with self._open("GET", f"{self._base}/{path}", headers) as answer:
                data: bytes = answer.read(most_bytes + 1)
                if len(data) <= most_bytes:
                    require_whole(answer, len(data))
            return data

        data = self._persistently(once)
        if len(data) > most_bytes:
            message = f"sends more than {most_bytes:,} bytes as {path:.80}"
            raise VerificationFailed(message, where=self._reference.name)
        return data

    def _persistently(self, read: Callable[[], T]) -> T:
        """Call `read`, up to _ATTEMPTS times if the connection breaks, and return its result."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return read()
            except REFUSALS as error:
                if attempt == _ATTEMPTS or not (is_temporary(error) or isinstance(error, TimeoutError)):
                    raise self._refused(error, "pull") from error

    def _as_named(self, data: bytes, digest: str) -> bytes:
        self._compare(f"sha256:{sha256(data)}", digest)
        return data

    def _compare(self, found: str, wanted: str) -> None:
        if found != wanted:
            raise VerificationFailed(f"sends other bytes than {wanted}", where=self._reference.name)

    def upload(self, content: Path | bytes, digest: str) -> None:
        """Upload a blob, unless the repository has it."""
        try:
            if self._has(digest):
                return
            with self._open("POST", f"{self._base}/blobs/uploads/", {}, b"") as answer:
                place = urllib.parse.urljoin(answer.url, answer.headers["Location"])
            place += f"{'&' if '?' in place else '?'}digest={urllib.parse.quote(digest, safe='')}"
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
                self._open("PUT", place, headers, file).close()
        except REFUSALS as error:
            raise self._refused(error, "push") from None

    def _has(self, digest: str) -> bool:
        try:
            self._open("HEAD", f"{self._base}/blobs/{digest}", {}).close()
        except urllib.error.HTTPError as error:
            if error.code == http.client.NOT_FOUND:
                return False
            raise
        return True

    def put_manifest(self, data: bytes, name: str) -> None:
        """Upload a manifest under a tag, or under its digest."""
        try:
            self._open("PUT", f"{self._base}/manifests/{name}", {"Content-Type": MANIFESTS[0]}, data).close()
        except REFUSALS as error:
            raise self._refused(error, "push") from None

    def _open(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | BinaryIO | None = None
    ) -> Any:
        """Return the response of a URL; log in once if the registry asks for it."""
        sent = self._authorization
        try:
            return self._send(method, url, headers, data, sent)
        except urllib.error.HTTPError as error:
            if error.code != http.client.UNAUTHORIZED:
                raise
            authorization = self._log_in(error.headers.get("WWW-Authenticate", ""), sent)
            if authorization == sent:
                raise
            error.close()
        return self._send(method, url, headers, data, authorization)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes | BinaryIO | None,
        authorization: str | None,
    ) -> Any:
        if data is not None and not isinstance(data, bytes):
            data.seek(0)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise PermissionError(f"it sends to {url[:80]!r}")
        request = urllib.request.Request(url, data, {"User-Agent": "bench", **headers}, method=method)
        # The URL for an upload may be on another host, which must not get the login.
        if authorization and f"{parts.scheme}://{parts.netloc}" == self._origin:
            request.add_unredirected_header("Authorization", authorization)
        return self._opener.open(request, timeout=_SILENCE_SECONDS)

    def _log_in(self, asked: str, sent: str | None) -> str | None:
        """Return the authorization to send after a 401; `sent` if the registry asks for nothing else.

        Another thread may have logged in since `sent` was sent: its authorization is returned then.
        """
        with self._logging_in:
            if self._authorization == sent:
                self._authorization = self._authorization_for(asked)
            return self._authorization

    def _authorization_for(self, asked: str) -> str | None:
        """Return the authorization that the header of a registry's 401 response asks for."""
        kind, _, rest = asked.partition(" ")
        if kind.lower() == "basic" and self._login:
            return self._login.basic
        if kind.lower() == "bearer":
            fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            return f"Bearer {self._token(fields)}"
        return self._authorization

    def _token(self, fields: Mapping[str, str]) -> str:
        """Ask the server that the registry names for a token."""
        realm = fields.get("realm", "")
        parts = urllib.parse.urlsplit(realm)
        open_line = parts.scheme == "http" and not is_loopback(parts.netloc)
        if parts.scheme not in ("http", "https") or (open_line and self._login):
            raise PermissionError(f"it sends for a token to {realm[:80]!r}")
        query = {name: fields[name] for name in ("service", "scope") if name in fields}
        headers = {"User-Agent": "bench"}
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}", None, headers)
        if self._login:
            request.add_unredirected_header("Authorization", self._login.basic)
        with self._opener.open(request, timeout=_SILENCE_SECONDS) as answer:
            document = from_json(dict[str, Any], strict_loads(answer.read(_MAX_TOKEN_BYTES)))
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise PermissionError("it gives no token")
        return token

    def _refused(self, error: Exception, verb: str) -> BenchError:
        code = getattr(error, "code", None)
        advice = None
        if code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            advice = f"store a login that may {verb}: docker login {self._reference.host}"
        elif code == http.client.NOT_FOUND:
            advice = "the registry has no such image, or shows it only after a login"
        elif code == http.client.TOO_MANY_REQUESTS:
            wait = f"wait {after} s" if (after := _retry_after(error)) else "wait some minutes"
            advice = f"{wait}, or store a login, whose limit is higher: docker login {self._reference.host}"
        elif isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
            advice = "if this is your registry, let this machine trust its authority: SSL_CERT_FILE=CA.pem"
        elif code is None and self._origin.startswith("https:"):
            advice = "if the registry has no TLS: --plain-http"
        return EnvironmentCannot(
            f"the registry refused: {reason(error)}", where=self._reference.name, advice=advice
        )


def _retry_after(error: Exception) -> int | None:
    """Return how many seconds a server asks to wait; None if it gives no number of seconds."""
    after = str(getattr(error, "headers", {}).get("Retry-After", ""))
    return int(after) if re.fullmatch("[0-9]{1,6}", after) else None


def parse_manifest(data: bytes, where: str) -> Mapping[str, Any]:
    """Parse the manifest of one image; VerificationFailed for anything else, such as a list of images."""
    try:
        document = strict_loads(data)
        kind = document.get("mediaType", MANIFESTS[0])
        if kind not in MANIFESTS or document["schemaVersion"] != 2:
            raise VerificationFailed(f"is not the manifest of one image: {kind!r:.80}", where=where)
        for blob in (document["config"], *document["layers"]):
            if not re.fullmatch("sha256:[0-9a-f]{64}", blob["digest"]) or type(blob["size"]) is not int:
                raise DecodeError("a blob has no digest or no size")
            from_json(dict[str, Any], blob.get("annotations") or {})
    except (DecodeError, LookupError, TypeError, AttributeError) as error:
        raise VerificationFailed(f"its manifest is malformed: {error!r:.80}", where=where) from None
    return dict(document)

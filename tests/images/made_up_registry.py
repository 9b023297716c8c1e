"""A container registry in memory, which can lie, break off, and ask for a login."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class MadeUpRegistry:
    """The contents of a registry, and its faults."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)  # by tag and by digest
    replaced: dict[str, bytes] = field(default_factory=dict)  # what is sent in place of a blob or manifest
    broken: int = 0  # how many answers break off after half of a blob
    whole: bool = False  # it answers with whole blobs, also where a part is asked for
    ranges: list[str] = field(default_factory=list)  # the parts of blobs that were asked for
    login: tuple[str, str] | None = None  # who may read and write
    asks: str = "Bearer"  # what kind of authorization
    seen: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, authorization
    address: str = ""
    uploads: str = "/v2/lab/bench/blobs/uploads/1?state=x"  # where blobs are uploaded to
    given: bytes | None = None  # what it answers in place of a token
    realm: str = ""  # where it sends for a token
    refuses: int | None = None  # code of every answer
    unknown: threading.Barrier | None = None  # how many requests without a login are answered together

    def token(self, authorization: str) -> str | None:
        """Return the token of a login; None for another one."""
        user, password = self.login or ("", "")
        right = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        return "a-token" if authorization == right else None


class Handler(BaseHTTPRequestHandler):
    registry: MadeUpRegistry

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, code: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_any(self) -> None:
        own, given = self.registry, self.headers.get("Authorization", "")
        path = self.path.partition("?")[0]
        own.seen.append((self.command, self.path, given))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if own.refuses is not None:
            self.answer(own.refuses, Retry_After="120")
            return
        if path == "/token":
            if own.given is not None:
                self.answer(200, own.given)
                return
            token = own.token(given)
            self.answer(200, json.dumps({"token": token}).encode()) if token else self.answer(401)
            return
        wanted = "Bearer a-token" if own.asks == "Bearer" else given if own.token(given) else "Basic"
        if own.login and given != wanted:
            if own.unknown:
                own.unknown.wait()
            ask = f'Bearer realm="{own.realm}",service="here",scope="pull,push"'
            self.answer(401, WWW_Authenticate=ask if own.asks == "Bearer" else "Basic")
            return
        kind, name = re.fullmatch(r"/v2/[^?]*?/(blobs|manifests)/(.*)", path).groups()  # type: ignore[union-attr]
        stored = own.blobs if kind == "blobs" else own.manifests
        if self.command == "POST":
            self.answer(202, Location=own.uploads)
        elif self.command == "PUT":
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            stored[digest] = body
            if kind == "manifests":
                stored[name] = body
            self.answer(201)
        elif name not in stored:
            self.answer(404)
        else:
            self.send(own.replaced.get(name, stored[name]))

    def send(self, data: bytes) -> None:
        self.registry.ranges.append(self.headers.get("Range", ""))
        start = None if self.registry.whole else re.fullmatch(r"bytes=(\d+)-", self.registry.ranges[-1])
        code, rest = (206, data[int(start[1]) :]) if start else (200, data)
        if self.registry.broken and self.command == "GET" and "/blobs/" in self.path and len(rest) > 1:
            self.registry.broken -= 1
            self.send_response(code)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
            return
        self.answer(code, rest)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815


@contextmanager
def made_up_registry() -> Iterator[MadeUpRegistry]:
    registry = MadeUpRegistry()
    handler = type("Own", (Handler,), {"registry": registry})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        registry.realm = f"http://{registry.address}/token"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()

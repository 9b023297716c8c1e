"""A web server with the pages and the faults that a test gives it."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.packages.package_index import PackageFile

DATA = bytes(range(256)) * 2000
NAME = "thing-1.0-py3-none-any.whl"
WHEEL = PackageFile(NAME, hashlib.sha256(DATA).hexdigest(), len(DATA))
OTHER = b"another wheel" * 40_000
PAGE = "/simple/thing/"
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Web:
    """A web server: its pages by path, its faults, and the requests that it got."""

    pages: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)  # HTTP codes
    cut_after: int | None = None  # bytes of an answer after which the connection breaks
    whole: set[str] = field(default_factory=set)  # paths whose answers never break
    pause_seconds: float = 0.0  # before each part of a large answer
    ranges: bool = True
    login: str | None = None
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, login
    port: int = 0
    server: ThreadingHTTPServer | None = None
    answering: Callable[[], object] = lambda: None  # called before each answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def simple(self) -> str:
        return f"{self.url}/simple"

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    @property
    def ranges_asked(self) -> list[str | None]:
        """The ranges of files that were asked for."""
        return [asked for path, asked, _ in self.asked if path.startswith("/files")]

    @property
    def logins(self) -> list[str | None]:
        """The logins of all requests, as user:password."""
        kind = "Basic "
        return [text and base64.b64decode(text.removeprefix(kind)).decode() for _, _, text in self.asked]

    def simple_with(self, login: str) -> str:
        """Return the URL of the index with a login."""
        return self.simple.replace("//", f"//{login}@")

    def publish(self, data: bytes = DATA, name: str = NAME, sha256: str | None = WHEEL.sha256) -> None:
        """List a file on the page of its project, with a digest that may be false."""
        self.pages[f"/files/{name}"] = data
        fragment = f"#sha256={sha256}" if sha256 else ""
        self.link(f"../../files/{name}{fragment}")

    def link(self, url: str) -> None:
        """Add a link to the page of the project."""
        self.pages[PAGE] = self.pages.get(PAGE, b"") + f'<a href="{url}">{url}</a>\n'.encode()


@contextmanager
def serving() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):  # the client may have heard enough
                _answer(self, web)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = web.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


def _answer(request: BaseHTTPRequestHandler, web: Web) -> None:
    asked_range, login = request.headers.get("Range"), request.headers.get("Authorization")
    web.asked.append((request.path, asked_range, login))
    web.answering()
    path = request.path.replace(web.url, "")
    data = web.pages.get(path)
    if web.login is not None and login != f"Basic {base64.b64encode(web.login.encode()).decode()}":
        request.send_error(401)
    elif path in web.refusals:
        request.send_error(web.refusals[path])
    elif path in web.redirects:
        request.send_response(302)
        request.send_header("Location", web.redirects[path])
        request.end_headers()
    elif data is None:
        request.send_error(404)
    else:
        _send(request, web, path, data, int(asked_range[6:-1]) if asked_range and web.ranges else 0)


def _send(request: BaseHTTPRequestHandler, web: Web, path: str, data: bytes, start: int) -> None:
    if start >= len(data) > 0:
        request.send_error(416)
        return
    request.send_response(206 if start else 200)
    request.send_header("Content-Type", web.kinds.get(path, "text/html"))
    request.send_header("Content-Length", str(len(data) - start))
    request.end_headers()
    is_cut = web.cut_after is not None and path not in web.whole
    end = start + (web.cut_after or 0) if is_cut else len(data)
    if request.command == "HEAD":
        return
    for at in range(start, min(end, len(data)), 2**16):
        time.sleep(web.pause_seconds)
        request.wfile.write(data[at : min(at + 2**16, end)])
        request.wfile.flush()
    request.close_connection = True

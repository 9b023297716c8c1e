"""Small wheels, folders of them that are package indexes, and servers of such folders that misbehave."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.environment.interpreter import Interpreter

PYTHON = Interpreter(Path("/usr/bin/python3.11"), (3, 11), "3.11.2", "b" * 64, (2, 36))
Serve = Callable[[SimpleHTTPRequestHandler], bool]  # whether it has answered the request itself


def make_wheel(
    folder: Path,
    project: str,
    version: str = "1.0",
    tags: str = "py3-none-any",
    files: Mapping[str, bytes] | None = None,
    executable: tuple[str, ...] = (),
) -> Path:
    """Write a wheel with the given files, or with a module of one line."""
    module = project.replace("-", "_")
    path = folder / f"{module}-{version}-{tags}.whl"
    given = dict(files) if files is not None else {f"{module}/__init__.py": f"v = {version!r}\n".encode()}
    metadata = f"{module}-{version}.dist-info"
    given[f"{metadata}/METADATA"] = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
    given[f"{metadata}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n".encode()
    rows = [f'"{name}",sha256={_record_digest(data)},{len(data)}\n' for name, data in given.items()]
    given[f"{metadata}/RECORD"] = "".join([*rows, f"{metadata}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in given.items():
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = (0o100755 if name in executable else 0o100644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_index(folder: Path, *wheels: Path, hashes: bool = True) -> Path:
    """Write a package index of HTML pages (PEP 503) with links to copies of the wheels."""
    pages: dict[str, list[str]] = {}
    (folder / "files").mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        (folder / "files" / wheel.name).write_bytes(wheel.read_bytes())
        fragment = f"#sha256={sha256_of(wheel)}" if hashes else ""
        link = f'<a href="../../files/{wheel.name}{fragment}">{wheel.name}</a>'
        pages.setdefault(wheel.name.split("-")[0].replace("_", "-").lower(), []).append(link)
    for project, links in pages.items():
        page = folder / "simple" / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<br>".join(links))
    return folder


def lock_lines(*wheels: Path) -> str:
    """Return the lines of a lock that accepts these wheels alone."""
    lines = []
    for wheel in wheels:
        project, version = wheel.name.split("-")[:2]
        lines.append(f"{project.replace('_', '-')}=={version} --hash=sha256:{sha256_of(wheel)}\n")
    return "".join(lines)


class Server(ThreadingHTTPServer):
    """A server on loopback that keeps the requests it got."""

    daemon_threads = True
    requests: list[SimpleHTTPRequestHandler]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def simple(self) -> str:
        return f"{self.url}/simple"

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@contextmanager
def serving(folder: Path, serve: Serve = lambda _: False) -> Iterator[Server]:
    """Serve a folder; `serve` may answer a request in its own way."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # the second write of an answer waits for nothing

        def do_GET(self) -> None:
            server.requests.append(self)
            if not serve(self):
                super().do_GET()

        def do_HEAD(self) -> None:
            if not serve(self):
                super().do_HEAD()

        def log_message(self, *_: Any) -> None: ...

    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(
    request: SimpleHTTPRequestHandler,
    data: bytes,
    *,
    code: int = 200,
    stated: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> bool:
    """Answer a request with `data`; `stated` is the length that the head states, and the answer may lack."""
    request.send_response(code)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data) if stated is None else stated))
    request.end_headers()
    request.wfile.write(data)
    request.close_connection = True
    return True


def json_page(*wheels: Path) -> bytes:
    """Return the page of a project as JSON (PEP 691), with sizes (PEP 700)."""
    files = [
        {
            "url": f"../../files/{wheel.name}",
            "filename": wheel.name,
            "hashes": {"sha256": sha256_of(wheel)},
            "size": wheel.stat().st_size,
        }
        for wheel in wheels
    ]
    return json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode()

"""Package indexes on loopback whose packages are stand-ins: they install in no time, by the real ones' rules.

A stand-in has name, version, Requires-Python, requirements and, if it is a source archive, the build
requirements and imports of the real package, but no contents. pip decides from these alone what fits, and in
which order something can be built. Two indexes are served:

- http://127.0.0.1:PORT/X.Y/simple, where machines with Python X.Y look: all but builds with a label (+cu130)
- PyTorch's own, with torch's labelled builds, by its real https address: the server is pip's proxy, too
"""

from __future__ import annotations

import io
import json
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.pip_lines.package_facts import PackageFacts, Packages
from tests.pip_lines.printed_lines import HERE
from tests.pip_lines.stand_in_backend import write_wheel

TORCH_INDEX = "download.pytorch.org"
BACKEND = Path(__file__).with_name("stand_in_backend.py")
OF_CUDA = ("cuda-", "nvidia-", "triton")  # requirements that a build for the CPU does not have
NO_PYTHON = "&lt;3"  # Requires-Python of what is for another Python
EXTRA = re.compile(r"extra == [\"']([^\"']+)[\"']")


class StandInIndex:
    """The indexes' files and pages."""

    def __init__(self, packages: Packages, folder: Path) -> None:
        self.packages, self.folder = packages, folder
        self.url = ""
        self.certificate = _certificate(folder)
        self._made: dict[str, bytes] = {}
        self._real: dict[str, list[str]] = {}

    def add_real(self, file: Path) -> None:
        """Offer a real wheel, and no stand-ins of its package."""
        self._made[file.name] = file.read_bytes()
        self._real.setdefault(file.name.split("-")[0].replace("_", "-"), []).append(file.name)

    def add_downloaded(self, *requirements: str) -> None:
        """Offer real wheels, which pip downloads from where its own configuration looks."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
            subprocess.run([*command, *requirements], check=True)
            for wheel in Path(folder).glob("*.whl"):
                self.add_real(wheel)

    def page(self, path: str) -> bytes | None:
        """Return a project's page: /X.Y/simple/NAME/ of the usual index, /whl/LABEL/NAME/ of PyTorch's."""
        match path.strip("/").split("/"):
            case [python, "simple", name] if name in self._real:
                links = [(file, True) for file in self._real[name]]
            case [python, "simple", name]:
                links = [
                    (self._file(name, version, facts), facts.admits(python))
                    for version, facts in self.packages.get(name, {}).items()
                ]
            case ["whl", label, "torch"]:
                links = [
                    (self._file("torch", f"{version}+{label}", for_label(facts, label)), True)
                    for version, facts in self.packages["torch"].items()
                ]
            case _:
                return None
        return "".join(
            f'<a href="/files/{file}" data-requires-python="{"" if fits else NO_PYTHON}">{file}</a>'
            for file, fits in links
        ).encode()

    def file(self, path: str) -> bytes | None:
        return self._made.get(path.removeprefix("/files/").replace("%2B", "+"))

    def _file(self, name: str, version: str, facts: PackageFacts) -> str:
        """Make a stand-in unless it is there; return its file name."""
        base = f"{name.replace('-', '_')}-{version}"
        file = f"{base}.tar.gz" if facts.build else f"{base}-py3-none-any.whl"
        if file not in self._made:
            lines = metadata_lines(facts.requires)
            if facts.admits(HERE):  # else a machine that stands for another Python would refuse it
                lines.append(f"Requires-Python: {facts.python}")
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                if facts.build:
                    told = (name, version, lines, facts)
                    self._made[file] = source_archive(base, {**source_files(*told), **files_to_read(*told)})
                else:
                    write_wheel(Path(folder), name, version, lines)
                    self._made[file] = Path(folder, file).read_bytes()
        return file


def metadata_lines(requires: Iterable[str]) -> list[str]:
    """Return the lines of a package's metadata for its requirements, and for the extras that these name."""
    extras = sorted({extra for each in requires for extra in EXTRA.findall(each)})
    return [*(f"Provides-Extra: {each}" for each in extras), *(f"Requires-Dist: {each}" for each in requires)]


def source_files(name: str, version: str, metadata: list[str], facts: PackageFacts) -> Mapping[str, str]:
    """Return the files of a stand-in that has to be built, by their names."""
    assert facts.build is not None
    told = {"name": name, "version": version, "metadata": metadata, "imports": facts.build.imports}
    system = {"requires": list(facts.build.requires), "build-backend": BACKEND.stem, "backend-path": ["."]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in system.items()]
    return {
        "pyproject.toml": "\n".join(["[build-system]", *lines, ""]),
        "facts.json": json.dumps(told),
        BACKEND.name: BACKEND.read_text(),
    }


def files_to_read(name: str, version: str, metadata: list[str], facts: PackageFacts) -> Mapping[str, str]:
    """Return the files from which readers of an archive learn its requirements, without building it."""
    assert facts.build is not None
    lines = ["Metadata-Version: 2.2", f"Name: {name}", f"Version: {version}", *metadata, ""]
    setup = "".join(f"import {module}\n" for module in facts.build.imports)
    return {"PKG-INFO": "\n".join(lines), "setup.py": setup}


def source_archive(base: str, files: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{base}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def for_label(facts: PackageFacts, label: str) -> PackageFacts:
    """Return requirements of a labelled build of torch: that for the CPU needs none of CUDA's packages."""
    needed = (each for each in facts.requires if label != "cpu" or not each.startswith(OF_CUDA))
    return replace(facts, requires=tuple(needed))


def _certificate(folder: Path) -> Path:
    """Make a certificate of PyTorch's index, with its key in the same file."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=index"
    command += " -addext basicConstraints=critical,CA:FALSE"  # as uv wants it
    command += f" -addext subjectAltName=DNS:{TORCH_INDEX} -keyout {folder}/key -out {folder}/cert"
    subprocess.run(command.split(), check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "cert").read_bytes() + (folder / "key").read_bytes())
    return both


@contextmanager
def serving(packages: Packages, folder: Path) -> Iterator[StandInIndex]:
    index = StandInIndex(packages, folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(index.certificate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # the second write of an answer waits for nothing

        def do_GET(self) -> None:
            data = index.file(self.path) if self.path.startswith("/files/") else index.page(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_CONNECT(self) -> None:
            """Be the proxy to PyTorch's index, and to nothing else."""
            if self.path != f"{TORCH_INDEX}:443":
                self.send_error(403)
                return
            self.send_response(200)
            self.end_headers()
            self.connection = tls.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
            self.close_connection = False

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()

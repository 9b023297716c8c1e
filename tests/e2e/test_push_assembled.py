"""A node assembles the CPU image from package files that it downloads: it is the image that was built."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.base.stamps import file_sha256
from bench.images.archive import extract, facts_of
from bench.images.package_list import LIST, read_list
from tests.e2e.images import Images
from tests.e2e.nodes import wire
from tests.e2e.pushing import WithImage, nodes_with_engines

pytestmark = pytest.mark.e2e

MB = 1_000_000
# Bytes per second from the operator to a node: so few that assembling is faster than sending, also where a
# busy machine downloads slowly.
LINE = 2.0 * MB


@pytest.fixture(scope="module")
def operator(images: Images) -> Iterator[WithImage]:
    assert images.one
    with nodes_with_engines() as made:
        (made.folder / "one.tar").hardlink_to(images.folder / "one.tar")
        yield made


@pytest.fixture
def index(images: Images, tmp_path: Path) -> Path:
    """A package index of the image's wheels, as a folder: a page of links with digests for each project."""
    image = images.folder / "one.tar"
    by_digest = {file_sha256(path): path for path in (images.folder / "cache/wheels").rglob("*.whl")}
    folder = tmp_path / "index"
    for file in read_list(extract(image, facts_of(image), LIST)):
        if file.is_wheel:
            (folder / file.project).mkdir(parents=True)
            os.link(by_digest[file.sha256], folder / file.project / file.name)
            link = f'<a href="{file.name.replace("+", "%2B")}#sha256={file.sha256}">{file.name}</a>'
            (folder / file.project / "index.html").write_text(link)
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(OSError):  # a round of downloads ends in the middle of a file
            super().copyfile(source, outputfile)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def pushed(operator: WithImage, node: int, *words: str) -> tuple[int, str]:
    """Push the image over a slow line to a node; return the bytes on that line, and the output."""
    address = operator.nodes.addresses[node]
    with wire(operator.nodes, address) as line:
        line.bytes_per_second = LINE
        words = ("--image", str(operator.folder / "one.tar"), "--no-run", *words)
        done = operator.bench(
            *operator.pushing(operator.manifest(), f"{line.address}:{line.port}", *words), "--json"
        )
        assert json.loads(done.stdout)["nodes"][0]["outcome"] == "ready"
        return line.count, done.stderr


def test_a_node_with_an_index_and_mirrors_gets_four_megabytes(
    operator: WithImage, index: Path, images: Images
) -> None:
    """Debian's packages come from the mirrors that this machine's apt has, as for the build of the image."""
    with served(index) as url:
        moved, said = pushed(operator, 0, "--index", url)
    print(f"{moved:,} bytes over SSH\n{said}")
    assert "instead of all layers over SSH" in said
    assert operator.images(0) == [images.one["config"]]
    assert moved < 4.5 * MB
    assert operator.nodes.left(operator.nodes.addresses[0]) == [".bench"]


def test_what_an_index_lies_about_or_lacks_is_sent(operator: WithImage, index: Path, images: Images) -> None:
    """There is no Debian mirror; one wheel's link leads to another file, and one to none."""
    for project in ("regex", "tokenizers"):
        (wheel,) = (index / project).glob("*.whl")
        wheel.unlink()
        if project == "regex":
            shutil.copy(next((index / "torch").glob("*.whl")), wheel)
    with served(index) as url:
        moved, said = pushed(operator, 1, "--index", url, "--mirror", f"{url}/nothing")
    print(f"{moved:,} bytes over SSH\n{said}")
    assert "sent instead: regex-" in said and "(127.0.0.1: it is larger than the file in the lock)" in said
    assert "more (127.0.0.1: 404" in said  # Debian's packages and tokenizers
    assert operator.images(1) == [images.one["config"]]
    assert moved < 180 * MB

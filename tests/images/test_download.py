"""Files are found by digest where pip and apt look, and indexes that lie, break or stall do no harm."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.images.download import Downloads, NotFound, PackageFile, Paused, Places, configured

DATA = bytes(range(256)) * 2000
NAME = "thing-1.0-py3-none-any.whl"
WHEEL = PackageFile(NAME, hashlib.sha256(DATA).hexdigest(), len(DATA))
OTHER = b"another wheel" * 40_000


@dataclass
class Web:
    """A web server: its pages by path, its faults, and what it was asked for."""

    pages: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of an answer after which the connection breaks
    pause_seconds: float = 0.0  # before each part of a large answer
    ranges: bool = True
    login: str | None = None
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, login
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def publish(self, data: bytes = DATA, name: str = NAME, sha256: str | None = WHEEL.sha256) -> None:
        """List a file on the page of its project, with a digest that may be false."""
        self.pages[f"/files/{name}"] = data
        fragment = f"#sha256={sha256}" if sha256 else ""
        page = self.pages.get("/simple/thing/", b"")
        self.pages["/simple/thing/"] = page + f'<a href="../../files/{name}{fragment}">{name}</a>\n'.encode()


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as one:
        yield one


@pytest.fixture
def second() -> Iterator[Web]:
    with serving() as one:
        yield one


class serving:  # noqa: N801
    """A context with a running `Web`."""

    def __enter__(self) -> Web:
        web = Web()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):  # the client may have heard enough
                    answer(self, web)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        web.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return web

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(request: Any, web: Web) -> None:
    asked_range, login = request.headers.get("Range"), request.headers.get("Authorization")
    web.asked.append((request.path, asked_range, login))
    path = request.path.replace(web.url, "")
    data = web.pages.get(path)
    if web.login is not None and login != f"Basic {base64.b64encode(web.login.encode()).decode()}":
        request.send_error(401)
    elif path in web.redirects:
        request.send_response(302)
        request.send_header("Location", web.redirects[path])
        request.end_headers()
    elif data is None:
        request.send_error(404)
    else:
        start = int(asked_range[6:-1]) if asked_range and web.ranges else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Type", web.kinds.get(path, "text/html"))
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        end = len(data) if web.cut_after is None else start + web.cut_after
        for at in range(start, min(end, len(data)), 2**16):
            time.sleep(web.pause_seconds)
            request.wfile.write(data[at : min(at + 2**16, end)])
            request.wfile.flush()
        request.close_connection = True


def fetch(
    folder: Path, *webs: Web, seconds: float = 30, places: Places | None = None, home: str = "/"
) -> None:
    given = places or Places(indexes=tuple(f"{web.url}/simple" for web in webs))
    Downloads(given, home).fetch(WHEEL, folder, time.monotonic() + seconds)


def arrived(folder: Path) -> bytes:
    return (folder / WHEEL.sha256).read_bytes()


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# --- where files are ------------------------------------------------------------------------------------


def test_a_file_is_found_by_the_digest_on_an_index_page(web: Web, tmp_path: Path) -> None:
    web.publish(OTHER, "thing-0.9-py3-none-any.whl", "0" * 64)
    web.publish()
    fetch(tmp_path, web)
    assert arrived(tmp_path) == DATA
    assert left(tmp_path) == [WHEEL.sha256]


def test_an_index_may_answer_in_json(web: Web, tmp_path: Path) -> None:
    files = [{"url": "/f/x.whl", "hashes": {"sha256": WHEEL.sha256}}]
    web.pages |= {"/simple/thing/": json.dumps({"files": files}).encode(), "/f/x.whl": DATA}
    web.kinds["/simple/thing/"] = "application/vnd.pypi.simple.v1+json"
    fetch(tmp_path, web)
    assert arrived(tmp_path) == DATA


@pytest.mark.parametrize("form", ["path", "file", "index", "page"])
def test_folders_and_pages_without_digests_are_searched_by_name(web: Web, tmp_path: Path, form: str) -> None:
    (tmp_path / "in/thing").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in/thing" / NAME).write_bytes(DATA)
    web.publish(sha256=None)
    places = {
        "path": Places(links=(str(tmp_path / "in/thing"),)),
        "file": Places(links=((tmp_path / "in/thing").as_uri(),)),
        "index": Places(indexes=((tmp_path / "in").as_uri(),)),
        "page": Places(links=(f"{web.url}/simple/thing/",)),
    }
    fetch(tmp_path / "out", places=places[form])
    assert arrived(tmp_path / "out") == DATA


def test_a_debian_package_is_taken_from_the_pool_or_from_security(web: Web, tmp_path: Path) -> None:
    web.pages |= {
        "/debian/pool/main/t/t/t_1_all.deb": DATA,
        "/debian-security/pool/updates/main/u/u/u_1_all.deb": OTHER,
    }
    files = [
        PackageFile("t/t/t_1_all.deb", WHEEL.sha256, None),
        PackageFile("u/u/u_1_all.deb", hashlib.sha256(OTHER).hexdigest(), None),
    ]
    nowhere = Downloads(Places(mirrors=(f"{web.url}/debian", f"{web.url}/debian-security"))).fetch_all(
        files, tmp_path, 30
    )
    assert nowhere == {}
    assert sorted(left(tmp_path)) == sorted(file.sha256 for file in files)


# --- indexes that lie, break or stall -------------------------------------------------------------------


@pytest.mark.parametrize("sha256", [WHEEL.sha256, None], ids=["with its digest", "under its name"])
def test_another_file_in_its_place_is_refused(web: Web, tmp_path: Path, sha256: str | None) -> None:
    web.publish(OTHER[: len(DATA)], sha256=sha256)
    with pytest.raises(NotFound, match=r"127\.0\.0\.1 has another file under this name"):
        fetch(tmp_path, web)
    assert left(tmp_path) == []


def test_a_larger_file_is_refused_before_it_fills_the_disk(web: Web, tmp_path: Path) -> None:
    web.publish(DATA * 50)
    with pytest.raises(NotFound, match="larger than the file in the lock"):
        fetch(tmp_path, web)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * len(DATA)


def test_an_honest_place_is_found_behind_one_that_lies(web: Web, second: Web, tmp_path: Path) -> None:
    web.publish(OTHER[: len(DATA)])
    second.publish()
    fetch(tmp_path, web, second)
    assert arrived(tmp_path) == DATA


def test_a_connection_that_breaks_is_continued(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.pages["/simple/thing/"] += b" " * 100
    web.cut_after = 200_000
    fetch(tmp_path, web)
    assert arrived(tmp_path) == DATA
    ranges = [asked for path, asked, _ in web.asked if path.startswith("/files")]
    assert ranges == [None, "bytes=200000-", "bytes=400000-"]


def test_a_server_that_breaks_and_cannot_continue_is_given_up(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.cut_after, web.ranges = 200_000, False
    with pytest.raises(NotFound, match="the connection broke"):
        fetch(tmp_path, web)
    assert not (tmp_path / WHEEL.sha256).exists()


def test_a_damaged_part_is_downloaded_again(web: Web, tmp_path: Path) -> None:
    web.publish()
    (tmp_path / f"{WHEEL.sha256}.part").write_bytes(b"x" * 1000)
    fetch(tmp_path, web)
    assert arrived(tmp_path) == DATA


def test_what_arrived_from_a_slow_server_is_continued_in_the_next_round(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.pause_seconds = 0.15
    with pytest.raises(Paused):
        fetch(tmp_path, web, seconds=0.5)
    part = (tmp_path / f"{WHEEL.sha256}.part").stat().st_size
    assert 0 < part < len(DATA)
    assert Downloads(Places(indexes=(f"{web.url}/simple",))).fetch_all([WHEEL], tmp_path, 30) == {}
    assert arrived(tmp_path) == DATA
    assert web.asked[-1][1] == f"bytes={part}-"


def test_a_file_that_is_nowhere_is_named_with_the_reason(web: Web, tmp_path: Path) -> None:
    found = Downloads(Places(indexes=(f"{web.url}/simple", "http://127.0.0.1:1"))).fetch_all(
        [WHEEL], tmp_path, 30
    )
    assert found == {WHEEL.sha256: "no index, folder or mirror lists it"}


# --- logins and proxies ---------------------------------------------------------------------------------


def test_a_login_goes_to_its_own_host_only_and_into_no_message(web: Web, second: Web, tmp_path: Path) -> None:
    web.login = "me:pass word"
    web.pages["/simple/thing/"] = f'<a href="{second.url}/f/{NAME}#sha256={WHEEL.sha256}">'.encode()
    web.redirects["/files/x.whl"] = f"{second.url}/f/{NAME}"
    second.pages[f"/f/{NAME}"] = OTHER[: len(DATA)]
    index = f"http://me:pass%20word@127.0.0.1:{web.port}/simple"
    with pytest.raises(NotFound) as caught:
        fetch(tmp_path, places=Places(indexes=(index,)))
    assert "pass" not in str(caught.value) and "me" not in str(caught.value).split()
    second.pages[f"/f/{NAME}"] = DATA
    web.pages["/simple/thing/"] = f'<a href="/files/x.whl#sha256={WHEEL.sha256}">'.encode()
    fetch(tmp_path, places=Places(indexes=(index,)))
    assert arrived(tmp_path) == DATA
    assert {login is not None for _, _, login in web.asked} == {True}
    assert {login for _, _, login in second.asked} == {None}


def test_a_login_may_be_in_netrc(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.login = "me:secret"
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    fetch(tmp_path, web, home=str(tmp_path))
    assert arrived(tmp_path) == DATA


def test_a_proxy_of_pip_is_used(web: Web, tmp_path: Path) -> None:
    page = f'<a href="/f#sha256={WHEEL.sha256}">'
    web.pages |= {"http://index.invalid/simple/thing/": page.encode(), "http://index.invalid/f": DATA}
    fetch(tmp_path, places=Places(indexes=("http://index.invalid/simple",), proxy=web.url))
    assert arrived(tmp_path) == DATA


# --- configuration --------------------------------------------------------------------------------------


def test_places_are_those_of_pip_in_pips_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    def found(**variables: str) -> Places:
        own = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
        return configured(own | variables, "http://default", etc=tmp_path)

    assert found(PIP_CONFIG_FILE="/dev/null").indexes == ("http://default",)
    write("xdg/pip/pip.conf", "[global]\nindex-url = http://all\nproxy = http://proxy:1\ncert = /ca.pem\n")
    write(
        "home/.config/pip/pip.conf",
        "[global]\nextra-index-url = http://a\n  http://b\n[install]\nfind-links=/w",
    )
    places = found()
    assert places.indexes == ("http://all", "http://a", "http://b")
    assert (places.links, places.proxy, places.certificates) == (("/w",), "http://proxy:1", "/ca.pem")
    write("own.conf", "[global]\nindex-url = http://own\n")
    only = found(PIP_CONFIG_FILE=str(tmp_path / "own.conf"))
    assert (only.indexes, only.links) == (("http://own",), ())
    assert found(PIP_INDEX_URL="http://variable").indexes[0] == "http://variable"
    assert found(PIP_NO_INDEX="1").indexes == ()
    assert found(PIP_CONFIG_FILE="/dev/null").indexes == ("http://default",)
    write("home/.config/pip/pip.conf", "no configuration")
    assert found().indexes == ("http://all",)


def test_a_given_index_and_mirror_replace_the_machines_own(tmp_path: Path) -> None:
    environment = {"PIP_INDEX_URL": "http://own", "PIP_FIND_LINKS": "/w", "PIP_CONFIG_FILE": "/dev/null"}
    places = configured(environment, "http://default", "http://given", "http://debian")
    assert (places.indexes, places.links, places.mirrors) == (
        ("http://given",),
        (),
        ("http://debian", "http://debian-security"),
    )


def test_mirrors_are_those_of_apt_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list").write_text(
        "# deb http://comment x main\ndeb [arch=amd64 signed-by=/k] http://one/debian/ bookworm main\n"
        "deb-src http://source x main\ndeb cdrom:[x]/ x main\n"
    )
    (tmp_path / "apt/sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: https://two/debian http://one/debian\nSuites: bookworm\n\n"
        "Types: deb\nURIs:\n  http://three/security\nSuites: bookworm-security\n"
    )
    found = configured({"PIP_CONFIG_FILE": "/dev/null"}, "http://default", etc=tmp_path).mirrors
    assert found == ("http://one/debian", "https://two/debian", "http://three/security")

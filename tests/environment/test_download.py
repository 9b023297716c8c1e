"""Files are fetched by digest, continued where they broke off, and refused if they are others."""

from __future__ import annotations

import os
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from bench.environment import download
from bench.environment.download import WantedFile, fetch_all, measured_rate
from bench.environment.package_index import OfferedFile, PackageIndex
from bench.environment.pip_settings import PipSettings
from tests.environment.made_wheels import Serve, answer, make_wheel, serving, sha256_of

DATA = bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.time, "sleep", lambda _: None)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "served", "a", files={"a/data.bin": DATA})


def fetch(
    wheel: Path, folder: Path, url: str, *, stated: bool = True, others: tuple[str, ...] = ()
) -> tuple[Path | None, str]:
    """Fetch a wheel from `url`, else from the `others`; return its path, or the reason why it was refused."""
    folder.mkdir(exist_ok=True)
    digest = sha256_of(wheel)
    offers = tuple(OfferedFile(each, digest if stated else None) for each in (url, *others))
    wanted = WantedFile("a", frozenset({digest}), offers)
    index = PackageIndex(PipSettings(()), folder)
    paths, refused = fetch_all([wanted], index, folder, lambda count: None)
    return paths.get("a"), refused.get("a", "")


def test_a_file_is_kept_under_the_digest_of_its_bytes(tmp_path: Path, wheel: Path) -> None:
    with serving(wheel.parent) as server:
        for stated in (True, False):
            path, _ = fetch(wheel, tmp_path / "here", f"{server.url}/{wheel.name}", stated=stated)
            assert path == tmp_path / "here" / sha256_of(wheel)
            assert path.read_bytes() == wheel.read_bytes()
        assert [each.name for each in (tmp_path / "here").iterdir()] == [sha256_of(wheel)]


def test_an_index_that_lies_is_refused_and_leaves_nothing(tmp_path: Path, wheel: Path) -> None:
    """The page states the lock's digest, and the server gives another wheel under the name."""
    with serving(wheel.parent, lambda request: answer(request, b"another wheel")) as server:
        path, reason = fetch(wheel, tmp_path / "here", f"{server.url}/{wheel.name}")
    assert path is None
    assert "not the lock's" in reason
    assert list((tmp_path / "here").iterdir()) == []


def test_the_next_place_is_asked_after_one_that_lies(tmp_path: Path, wheel: Path) -> None:
    with (
        serving(wheel.parent, lambda request: answer(request, b"another")) as liar,
        serving(wheel.parent) as good,
    ):
        urls = [f"{server.url}/{wheel.name}" for server in (liar, good)]
        path, _ = fetch(wheel, tmp_path / "here", urls[0], others=(urls[1],))
    assert path is not None
    assert path.read_bytes() == wheel.read_bytes()


def half_then_ranges(wheel: Path) -> Serve:
    """Break off the first answer in the middle; later ones begin where they are asked to."""

    def serve(request: SimpleHTTPRequestHandler) -> bool:
        data = wheel.read_bytes()
        asked = request.headers.get("Range")
        if asked is None:
            return answer(request, data[: len(data) // 2], stated=len(data))
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        return answer(request, data[start:], code=206)

    return serve


def test_a_download_that_breaks_off_is_continued(tmp_path: Path, wheel: Path) -> None:
    with serving(wheel.parent, half_then_ranges(wheel)) as server:
        path, _ = fetch(wheel, tmp_path / "here", f"{server.url}/{wheel.name}")
        asked = [request.headers.get("Range") for request in server.requests]
    assert path is not None
    assert path.read_bytes() == wheel.read_bytes()
    assert asked == [None, f"bytes={wheel.stat().st_size // 2}-"]


def test_a_download_of_a_killed_installation_is_continued(tmp_path: Path, wheel: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / f"{sha256_of(wheel)}.part").write_bytes(wheel.read_bytes()[:100])
    with serving(wheel.parent, half_then_ranges(wheel)) as server:
        path, _ = fetch(wheel, here, f"{server.url}/{wheel.name}")
        assert [request.headers.get("Range") for request in server.requests] == ["bytes=100-"]
    assert path is not None


def test_a_server_that_cannot_continue_sends_everything_again(tmp_path: Path, wheel: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / f"{sha256_of(wheel)}.part").write_bytes(b"of another wheel")
    with serving(wheel.parent) as server:
        path, _ = fetch(wheel, here, f"{server.url}/{wheel.name}")
    assert path is not None
    assert path.read_bytes() == wheel.read_bytes()


def test_a_server_that_always_breaks_off_is_given_up(tmp_path: Path, wheel: Path) -> None:
    def never_whole(request: SimpleHTTPRequestHandler) -> bool:
        return answer(request, b"x", stated=1000, code=206 if request.headers.get("Range") else 200)

    with serving(wheel.parent, never_whole) as server:
        path, reason = fetch(wheel, tmp_path / "here", f"{server.url}/{wheel.name}")
    assert path is None
    assert "broke off 4 times" in reason
    assert list((tmp_path / "here").iterdir()) == []


def test_the_rate_of_an_index_is_measured_from_a_download(tmp_path: Path, wheel: Path) -> None:
    large = make_wheel(wheel.parent, "large", files={"large/data": os.urandom(2**21)})
    with serving(wheel.parent) as server:
        index = PackageIndex(PipSettings(()), tmp_path)
        assert (measured_rate(OfferedFile(f"{server.url}/{large.name}", None), index) or 0) > 0
        assert measured_rate(OfferedFile(f"{server.url}/{wheel.name}", None), index) is None  # too small
        assert measured_rate(OfferedFile(f"{server.url}/missing.whl", None), index) is None

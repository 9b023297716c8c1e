"""Files are fetched by digest, continued where they broke off, and refused if they are others."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.packages import download
from bench.packages.download import WantedFile, fetch_all, measured_rate
from bench.packages.errors import CannotDownload
from bench.packages.package_index import OfferedFile, PackageFile, PackageIndex
from bench.packages.pip_settings import PipSettings
from tests.packages.web import DATA, JSON, NAME, OTHER, PAGE, WHEEL, Web

LIE = OTHER[: len(DATA)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE_SECONDS", 0.0)


def fetch(folder: Path, *webs: Web, seconds: float = 30, file: PackageFile = WHEEL) -> str:
    """Fetch a file by its name from indexes; return why it was refused, or an empty text."""
    index = PackageIndex(PipSettings(tuple(web.simple for web in webs)), seconds=seconds)
    wanted = WantedFile.of(file, index)
    paths, refused = fetch_all([wanted], index, folder)
    assert paths in ({}, {file.name: folder / file.sha256})
    return refused.get(file.name, "")


def arrived(folder: Path) -> bytes:
    return (folder / WHEEL.sha256).read_bytes()


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def part_of(folder: Path, data: bytes) -> None:
    """Leave the beginning of a file behind, like a download that was killed."""
    (folder / f"{WHEEL.sha256}.part").write_bytes(data)


UNKNOWN_SIZE = WHEEL._replace(size=None)
SIZES = pytest.mark.parametrize("file", [WHEEL, UNKNOWN_SIZE], ids=["size known", "size unknown"])


# --- files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sha256", [WHEEL.sha256, None], ids=["by its digest", "by its name"])
def test_a_file_is_kept_under_the_digest_of_its_bytes(web: Web, tmp_path: Path, sha256: str | None) -> None:
    web.publish(OTHER, "thing-0.9-py3-none-any.whl", "0" * 64)
    web.publish(sha256=sha256)
    assert fetch(tmp_path, web) == ""
    assert arrived(tmp_path) == DATA
    assert left(tmp_path) == [WHEEL.sha256]


def test_a_file_that_is_there_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    web.publish()
    (tmp_path / WHEEL.sha256).write_bytes(DATA)
    assert fetch(tmp_path, web) == ""
    assert web.paths == [PAGE]


@pytest.mark.parametrize("data", [DATA, OTHER])
def test_an_accepted_file_does_not_stand_for_another_one(web: Web, tmp_path: Path, data: bytes) -> None:
    """A lock accepts wheels for several Pythons; the one that is offered is for this one."""
    web.publish(data)
    other = hashlib.sha256(OTHER).hexdigest()
    (tmp_path / other).write_bytes(OTHER)
    offer = OfferedFile(f"{web.url}/files/{NAME}", WHEEL.sha256)
    wanted = WantedFile("thing", frozenset({WHEEL.sha256, other}), [offer])
    paths, refused = fetch_all([wanted], PackageIndex(PipSettings(())), tmp_path)
    assert paths == ({"thing": tmp_path / WHEEL.sha256} if data == DATA else {})
    assert ("has another file" in refused.get("thing", "")) == (data == OTHER)


def test_of_several_accepted_digests_one_is_enough(web: Web, tmp_path: Path) -> None:
    web.publish(sha256=None)
    offer = OfferedFile(f"{web.url}/files/{NAME}", None)
    wanted = WantedFile("thing", frozenset({WHEEL.sha256, "0" * 64, "f" * 64}), [offer])
    paths, refused = fetch_all([wanted], PackageIndex(PipSettings(())), tmp_path)
    assert (paths, refused) == ({"thing": tmp_path / WHEEL.sha256}, {})
    assert left(tmp_path) == [WHEEL.sha256]


def test_a_debian_package_is_taken_from_the_pool_or_from_security(web: Web, tmp_path: Path) -> None:
    web.pages |= {
        "/debian/pool/main/t/t/t_1_all.deb": DATA,
        "/debian-security/pool/updates/main/u/u/u_1_all.deb": OTHER,
    }
    files = [
        PackageFile("t/t/t_1_all.deb", WHEEL.sha256, None),
        PackageFile("u/u/u_1_all.deb", hashlib.sha256(OTHER).hexdigest(), None),
    ]
    index = PackageIndex(PipSettings(()), (f"{web.url}/debian", f"{web.url}/debian-security"))
    wanted = [WantedFile.of(file, index) for file in files]
    paths, refused = fetch_all(wanted, index, tmp_path)
    assert (len(paths), refused) == (2, {})
    assert sorted(left(tmp_path)) == sorted(file.sha256 for file in files)


def test_bytes_are_counted_as_they_arrive_and_the_largest_file_begins_first(web: Web, tmp_path: Path) -> None:
    counts: list[int] = []
    sizes = (1_000, 300_000, 70_000)
    wanted = []
    for size in sizes:
        web.pages[f"/{size}"] = bytes(size)
        sha256 = hashlib.sha256(bytes(size)).hexdigest()
        wanted.append(
            WantedFile(str(size), frozenset({sha256}), [OfferedFile(f"{web.url}/{size}", None)], size)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "AT_ONCE", 1)
        fetch_all(wanted, PackageIndex(PipSettings(())), tmp_path, counts.append)
    assert web.paths == ["/300000", "/70000", "/1000"]
    assert sum(counts) == sum(sizes)


# --- places that lie ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sha256", [WHEEL.sha256, None], ids=["with its digest", "under its name"])
def test_another_file_in_its_place_is_refused(web: Web, tmp_path: Path, sha256: str | None) -> None:
    web.publish(LIE, sha256=sha256)
    assert fetch(tmp_path, web) == "127.0.0.1 has another file under this name, not the lock's"
    assert left(tmp_path) == []


def test_a_stated_digest_that_is_not_accepted_is_not_asked_for(web: Web, tmp_path: Path) -> None:
    index, offer = PackageIndex(PipSettings(())), OfferedFile(f"{web.url}/x", "../" * 8 + "f" * 64)
    _, refused = fetch_all([WantedFile("x", frozenset({WHEEL.sha256}), [offer])], index, tmp_path)
    assert refused == {"x": "no index, folder or mirror lists it"}
    assert web.asked == []


def test_a_larger_file_than_the_locks_is_refused_before_it_fills_the_disk(web: Web, tmp_path: Path) -> None:
    web.publish(DATA * 50)
    assert "larger than the file in the lock" in fetch(tmp_path, web)
    assert left(tmp_path) == []


def test_a_larger_file_than_its_index_says_is_refused(web: Web, tmp_path: Path) -> None:
    """The lock of an environment has no sizes."""
    web.pages |= {
        "/f.whl": DATA,
        PAGE: b'{"files": [{"url": "/f.whl", "hashes": {"sha256": "%s"}, "size": 9}]}',
    }
    web.pages[PAGE] = web.pages[PAGE].replace(b"%s", WHEEL.sha256.encode())
    web.kinds[PAGE] = JSON
    assert fetch(tmp_path, web, file=UNKNOWN_SIZE) == "127.0.0.1: it is larger than its index says"


def test_a_file_of_unknown_size_has_a_limit(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_LARGEST_BYTES", 2**18)
    web.publish()
    assert "it is larger than" in fetch(tmp_path, web, file=UNKNOWN_SIZE)
    assert left(tmp_path) == []


def test_an_index_cannot_raise_that_limit(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_LARGEST_BYTES", 2**18)
    hashes = {"sha256": WHEEL.sha256}
    page = {"files": [{"url": "/f.whl", "hashes": hashes, "size": 10**30}]}
    web.pages |= {"/f.whl": DATA, PAGE: json.dumps(page).encode()}
    web.kinds[PAGE] = JSON
    assert "it is larger than 8 GiB" in fetch(tmp_path, web, file=UNKNOWN_SIZE)
    assert left(tmp_path) == []


def test_an_honest_place_is_found_behind_one_that_lies(web: Web, second: Web, tmp_path: Path) -> None:
    web.publish(LIE)
    second.publish()
    assert fetch(tmp_path, web, second) == ""
    assert arrived(tmp_path) == DATA


def test_all_places_that_failed_are_named(web: Web, second: Web, tmp_path: Path) -> None:
    web.publish(LIE)
    second.publish()
    del second.pages[f"/files/{NAME}"]
    lies, lacks = "127.0.0.1 has another file under this name, not the lock's", "127.0.0.1: 404 Not Found"
    assert fetch(tmp_path, web, second) == f"{lies}; {lacks}"
    assert second.paths.count(f"/files/{NAME}") == 1  # a place that knows that it has none is asked once


def test_a_file_that_is_nowhere_is_named_with_the_reason_and_the_silent_index(
    web: Web, tmp_path: Path
) -> None:
    assert fetch(tmp_path, web) == "no index, folder or mirror lists it"
    index = PackageIndex(PipSettings((web.simple, "http://me:s3cret@127.0.0.1:1/simple")))
    wanted = WantedFile.of(WHEEL, index)
    assert fetch_all([wanted], index, tmp_path)[1] == {
        NAME: "no index, folder or mirror lists it; http://****@127.0.0.1:1/simple: Connection refused"
    }


def test_the_name_and_the_password_of_an_index_are_in_no_reason(web: Web, tmp_path: Path) -> None:
    web.login = "me:pass word"
    web.publish(LIE)
    index = PackageIndex(PipSettings((web.simple_with("me:pass%20word"),)))
    wanted = WantedFile.of(WHEEL, index)
    (why,) = fetch_all([wanted], index, tmp_path)[1].values()
    assert "pass" not in why and "me" not in why.split()
    assert web.logins == ["me:pass word"] * 2


# --- places that break or stall -------------------------------------------------------------------------


def test_a_connection_that_breaks_is_continued(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.pages[PAGE] += b" " * 100
    web.cut_after = 200_000
    assert fetch(tmp_path, web) == ""
    assert arrived(tmp_path) == DATA
    assert web.ranges_asked == [None, "bytes=200000-", "bytes=400000-"]


def test_a_connection_may_break_often_as_long_as_it_brings_something(web: Web, tmp_path: Path) -> None:
    web.publish()
    web.cut_after = 70_000
    assert fetch(tmp_path, web) == ""
    assert len(web.ranges_asked) == 8


@SIZES
@pytest.mark.parametrize("cut_after", [1, 200_000])
def test_a_place_that_always_breaks_off_is_given_up(
    web: Web, tmp_path: Path, cut_after: int, file: PackageFile
) -> None:
    """The server sends one byte each time, or cannot continue."""
    web.publish()
    web.cut_after, web.ranges = cut_after, cut_after == 1
    web.whole = {PAGE}
    why = fetch(tmp_path, web, file=file)
    assert why == "127.0.0.1: it broke off 4 times: the connection broke"
    assert left(tmp_path) == []
    assert len(web.ranges_asked) < 6


@SIZES
def test_what_a_broken_place_brought_is_continued_at_the_next_one(
    web: Web, second: Web, tmp_path: Path, file: PackageFile
) -> None:
    web.publish()
    web.cut_after, web.ranges = 200_000, False
    second.publish()
    assert fetch(tmp_path, web, second, file=file) == ""
    assert second.ranges_asked == ["bytes=200000-"]


@SIZES
def test_a_download_that_was_killed_is_continued(web: Web, tmp_path: Path, file: PackageFile) -> None:
    web.publish()
    part_of(tmp_path, DATA[:100])
    assert fetch(tmp_path, web, file=file) == ""
    assert arrived(tmp_path) == DATA
    assert web.ranges_asked == ["bytes=100-"]


@SIZES
@pytest.mark.parametrize("damaged", [b"of another wheel", LIE, DATA + b"more", DATA], ids=len)
@pytest.mark.parametrize("ranges", [True, False])
def test_any_part_becomes_the_file(
    web: Web, tmp_path: Path, damaged: bytes, ranges: bool, file: PackageFile
) -> None:
    """A part may be of another file, too long, or whole; the server may not be able to continue."""
    web.publish()
    web.ranges = ranges
    part_of(tmp_path, damaged)
    assert fetch(tmp_path, web, file=file) == ""
    assert arrived(tmp_path) == DATA
    assert left(tmp_path) == [WHEEL.sha256]


@SIZES
def test_a_place_that_breaks_and_lies_is_given_up(web: Web, tmp_path: Path, file: PackageFile) -> None:
    web.publish(LIE)
    web.cut_after = 300_000
    assert "has another file" in fetch(tmp_path, web, file=file)
    assert len(web.ranges_asked) <= 4
    assert left(tmp_path) == []


def test_what_arrived_in_time_is_continued_in_the_next_round(web: Web, tmp_path: Path) -> None:
    web.publish()
    index = PackageIndex(PipSettings((web.simple,)), seconds=60)

    def end(_count: int) -> None:
        index._until = 0.0

    assert fetch_all([WantedFile.of(WHEEL, index)], index, tmp_path, end) == ({}, {})
    assert left(tmp_path) == [f"{WHEEL.sha256}.part"]
    part = (tmp_path / f"{WHEEL.sha256}.part").stat().st_size
    assert 0 < part < len(DATA)
    assert fetch(tmp_path, web) == ""
    assert arrived(tmp_path) == DATA
    assert web.asked[-1][1] == f"bytes={part}-"


def test_nothing_is_asked_for_when_the_time_is_over(web: Web, tmp_path: Path) -> None:
    web.publish()
    assert fetch(tmp_path, web, seconds=0) == ""
    assert (web.asked, left(tmp_path)) == ([], [])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_no_place_is_blamed(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    web.publish()
    opened = Path.open

    def full(path: Path, mode: str = "r", *rest: Any) -> Any:
        if ".part." in path.name and "r" not in mode:
            raise OSError(number, os.strerror(number))
        return opened(path, mode, *rest)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CannotDownload, match="its disk is full; free some space") as caught:
        fetch(tmp_path, web)
    assert caught.value.where == str(tmp_path)
    assert len(web.ranges_asked) == 1


# --- the line -------------------------------------------------------------------------------------------


def test_the_rate_of_an_index_is_measured_from_a_download(web: Web) -> None:
    web.pages |= {"/large": os.urandom(2**21), "/small": DATA}
    index = PackageIndex(PipSettings(()))

    def rate(path: str) -> float | None:
        return measured_rate(OfferedFile(f"{web.url}{path}", None), index)

    assert (rate("/large") or 0) > 0
    assert rate("/small") is None
    assert rate("/missing") is None


def test_the_rate_of_a_slow_line_is_measured_from_a_part_of_a_file(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_PROBE_SECONDS", 1.0)
    web.pages["/large"], web.pause_seconds = bytes(2**24), 0.3
    rate = measured_rate(OfferedFile(f"{web.url}/large", None), PackageIndex(PipSettings(())))
    assert rate is not None and 0 < rate < 2**18

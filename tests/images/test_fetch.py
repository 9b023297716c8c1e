"""Files are fetched by digest: cached ones are reused, and a wrong digest is never accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images import fetch
from bench.images.locks import Pin
from tests.packages.web import PAGE, Web, serving

DATA = b"a source archive"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A package index on this machine, which pip's configuration names."""
    with serving() as web:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", web.simple)
        yield web


def publish(index: Web, name: str, data: bytes, digest: str | None = None) -> None:
    index.publish(data, name, digest or hashlib.sha256(data).hexdigest())


def pin(data: bytes = DATA) -> Pin:
    return Pin("thing", "1.0", frozenset({hashlib.sha256(data).hexdigest()}))


def test_a_source_is_found_by_its_digest_and_fetched_once(index: Web, tmp_path: Path) -> None:
    publish(index, "thing-0.9.tar.gz", b"older")
    publish(index, "thing-1.0-py3-none-any.whl", b"a wheel")
    publish(index, "thing-1.0.tar.gz", DATA)
    found = fetch.source(pin(), tmp_path / "cache")
    assert (found.name, found.read_bytes()) == ("thing-1.0.tar.gz", DATA)
    del index.pages[PAGE]
    assert fetch.source(pin(), tmp_path / "cache") == found


@pytest.mark.parametrize("name", ["%00.tar.gz", "..%5C..%5Cx.tar.gz", f"{'x' * 300}.tar.gz"])
def test_a_source_is_kept_under_the_name_of_its_pin(index: Web, tmp_path: Path, name: str) -> None:
    index.pages[f"/files/{name}"] = DATA
    index.link(f"../../files/{name}#sha256={next(iter(pin().sha256))}")
    own = Pin("thing", "1.0", pin().sha256)
    assert fetch.source(own, tmp_path / "cache") == tmp_path / "cache/thing-1.0.tar.gz"


def test_a_source_is_found_in_a_folder_where_pip_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder states no digests: the file of this name and version is the one whose bytes are compared."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name, data in (("thing-0.9", b"older"), ("thing-1.0", DATA), ("thing_more-1.0", b"another")):
        (folder / f"{name}.tar.gz").write_bytes(data)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert fetch.source(pin(), tmp_path / "cache").read_bytes() == DATA
    with pytest.raises(EnvironmentCannot, match=r"no source of thing 1\.0 with the lock's digest"):
        fetch.source(pin(b"what the lock means"), tmp_path / "other")


def test_a_file_with_a_wrong_digest_is_refused(index: Web, tmp_path: Path) -> None:
    publish(index, "thing-1.0.tar.gz", b"something else", digest=next(iter(pin().sha256)))
    with pytest.raises(EnvironmentCannot, match=r"no source of thing 1\.0 with the lock's digest"):
        fetch.source(pin(), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_an_index_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(
        EnvironmentCannot, match=r"the package index did not answer: http://127\.0\.0\.1:1/simple: "
    ):
        fetch.source(pin(), tmp_path / "cache")


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CERT", "/no/such.pem")
    with pytest.raises(EnvironmentCannot, match="certificates") as caught:
        fetch.source(pin(), tmp_path / "cache")
    assert (caught.value.where, caught.value.advice) == (
        "/no/such.pem",
        "correct `cert` in pip's configuration, or REQUESTS_CA_BUNDLE",
    )


def test_a_cached_wheel_counts_by_its_bytes_not_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0-py3-none-any.whl").write_bytes(b"damaged")
    (tmp_path / "Thing-1.0-cp311-cp311-linux_x86_64.whl").write_bytes(DATA)
    assert fetch.wheels([pin()], tmp_path, "3.11")["thing"].name == "Thing-1.0-cp311-cp311-linux_x86_64.whl"


def test_a_wheel_that_is_not_available_is_named(
    index: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index, "other.txt", b"")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentCannot, match="pip could not fetch the locked wheels"):
        fetch.wheels([pin()], tmp_path / "cache", "3.11")

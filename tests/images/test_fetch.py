"""Files are fetched by digest: cached ones are reused, and a wrong digest is never accepted."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.images import fetch
from bench.images.locks import Pin
from bench.packages.download import WantedFile
from bench.packages.package_index import OfferedFile
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
    wanted: list[str] = []
    fetch_all = fetch.fetch_all

    def noted(files: list[WantedFile], *words: Any) -> Any:
        wanted.extend(offered.name for file in files for offered in file.offers)
        return fetch_all(files, *words)

    monkeypatch.setattr(fetch, "fetch_all", noted)
    assert fetch.source(pin(), tmp_path / "cache").read_bytes() == DATA
    with pytest.raises(EnvironmentCannot, match=r"no source of thing 1\.0 with the lock's digest"):
        fetch.source(pin(b"what the lock means"), tmp_path / "other")
    assert wanted == ["thing-1.0.tar.gz"] * 2  # no other file is copied


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


# --- each step by itself ------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, data: bytes = DATA) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def test_wheels_are_found_by_project_digest_and_fit_also_in_folders_below(tmp_path: Path) -> None:
    pins = {"thing": pin(), "other-thing": Pin("other-thing", "1", pin().sha256)}
    wheel(tmp_path, "thing-1.0-py2-none-any.whl", b"another")
    wheel(tmp_path, "strange-1.0-py3-none-any.whl")
    wheel(tmp_path, "thing-1.0.tar.gz")
    mine, theirs = (
        wheel(tmp_path, "a/Thing-1.0-py3-none-any.whl"),
        wheel(tmp_path, "Other_Thing-1-py3-none-any.whl"),
    )
    assert fetch.accepted_files(tmp_path, pins) == {"thing": mine, "other-thing": theirs}
    assert fetch.accepted_files(tmp_path, pins, lambda name: name.startswith("Thing")) == {"thing": mine}
    assert fetch.accepted_files(tmp_path, pins, suffix=".tar.gz") == {"thing": tmp_path / "thing-1.0.tar.gz"}


class Pip:
    """A pip that puts these wheels into the folder for downloads, or fails with an error."""

    def __init__(self, *names: str, code: int = 0, err: str = "") -> None:
        self._names, self._code, self._err = names, code, err
        self.commands: list[list[str]] = []
        self.requirements: list[str] = []

    def __call__(self, command: list[str], **options: object) -> SimpleNamespace:
        assert options == {"check": False, "capture_output": True, "text": True, "encoding": "utf-8"}
        self.commands.append(command)
        self.requirements.append(Path(command[-1]).read_text())
        for name in self._names:
            wheel(Path(command[command.index("--dest") + 1]), name)
        return SimpleNamespace(returncode=self._code, stderr=self._err)


def test_pip_downloads_what_the_cache_lacks_for_the_pythons_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, other = Pip("thing-1.0-py3-none-any.whl"), Pin("other", "2", pin().sha256)
    monkeypatch.setattr(fetch.subprocess, "run", pip)
    cached = wheel(tmp_path / "cache", "other-2-py3-none-any.whl")
    found = fetch.wheels([pin(), other], tmp_path / "cache", "3.12", newest_glibc=7)
    assert found == {"thing": tmp_path / "cache/thing-1.0-py3-none-any.whl", "other": cached}
    fetch.wheels([], tmp_path / "made/by/need", "3.12")
    assert (tmp_path / "made/by/need").is_dir()
    assert pip.requirements == [f"{pin().line}\n"]
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--quiet",
        "--disable-pip-version-check",
    } <= {*command}
    assert "--implementation=cp" in command and "--python-version=3.12" in command
    assert [word.partition("=")[2] for word in command if word.startswith("--platform")] == [
        "manylinux_2_7_x86_64", "manylinux_2_6_x86_64", "manylinux_2_5_x86_64", "manylinux2014_x86_64",
        "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
    ]  # fmt: skip
    assert fetch.wheels([pin(), other], tmp_path / "cache", "3.12") == found
    assert len(pip.commands) == 1


def test_the_newest_platform_is_debian_12s_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip("thing-1.0-py3-none-any.whl")
    monkeypatch.setattr(fetch.subprocess, "run", pip)
    fetch.wheels([pin()], tmp_path, "3.11")
    platforms = [word for word in pip.commands[0] if word.startswith("--platform=manylinux_2")]
    assert (platforms[0], len(platforms)) == ("--platform=manylinux_2_36_x86_64", 32)


def test_a_wheel_that_pip_brings_and_that_does_not_fit_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.subprocess, "run", Pip("thing-1.0-py3-none-any.whl"))
    with pytest.raises(EnvironmentCannot) as caught:
        fetch.wheels([pin(), Pin("a", "3", pin().sha256)], tmp_path, "3.11", fits=lambda _: False)
    assert caught.value.message == "no wheel of a 3 has a digest of the lock"
    assert caught.value.advice is not None and caught.value.advice.startswith(f"put it into {tmp_path}, or")


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        ("ERROR: first\nERROR: last\nnotice", "ERROR: last"),
        ("a warning about ERROR", "a warning about ERROR"),
        ("x" * 600, "x" * 500),
    ],
)
def test_pips_last_error_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, err: str, reason: str
) -> None:
    monkeypatch.setattr(fetch.subprocess, "run", Pip(code=1, err=err))
    with pytest.raises(EnvironmentCannot) as caught:
        fetch.wheels([pin()], tmp_path, "3.11")
    assert caught.value.message == f"pip could not fetch the locked wheels: {reason}"


@pytest.mark.parametrize(
    ("url", "sha256", "may_be"),
    [
        ("https://i/x.tar.gz", next(iter(pin().sha256)), True),
        ("https://i/thing-1.0.tar.gz", "0" * 64, False),
        ("file:///d/Thing-1.0.tar.gz", None, True),
        ("file:///d/thing-1.1.tar.gz", None, False),
        ("file:///d/thing-1.0.tar", None, False),
    ],
)
def test_a_stated_digest_counts_and_a_name_where_none_is_stated(
    url: str, sha256: str | None, may_be: bool
) -> None:
    assert fetch._may_be(OfferedFile(url, sha256), pin()) == may_be


def test_an_index_that_has_nothing_and_answers_is_told_from_one_that_does_not(
    index: Web, tmp_path: Path
) -> None:
    publish(index, "thing-1.0-py3-none-any.whl", b"a wheel")
    with pytest.raises(EnvironmentCannot, match=r"the package index has no source of thing 1\.0"):
        fetch.source(pin(), tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()


def test_the_name_of_a_source_is_that_of_a_project_in_files(index: Web, tmp_path: Path) -> None:
    index.pages["/simple/a-b-c/"] = index.pages.pop(PAGE, b"")
    path = wheel(tmp_path / "cache", "a_b_c-2.tar.gz")
    own = Pin("a-b-c", "2", pin().sha256)
    assert fetch.source(own, tmp_path / "cache") == path

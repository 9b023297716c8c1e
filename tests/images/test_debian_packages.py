"""Packages of Debian's lock are downloaded by digest, also when the mirrors have newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images import debian_packages
from bench.images.debian_packages import Deb, archives, deb_name, fetch_debs, pool_path, read_debs
from bench.images.locks import DEBIAN
from bench.packages.apt_sources import pool_url
from tests.environment.made_wheels import sha256_of
from tests.warm import ROOT

A, B = "a" * 64, "b" * 64
TOOL = Deb("tool", "2:1.0+b~1-1", A, "t/tool-src/tool_1.0+b~1-1_amd64.deb")


# --- the lock ----------------------------------------------------------------------------------------------


def test_a_lock_has_a_package_in_each_line_but_comments(tmp_path: Path) -> None:
    path, lib = tmp_path / "debian.lock", Deb("lib3.1", "3", B, "libx/libx++/lib3.1_3_all.deb")
    path.write_text(f"# made by make lock\n{TOOL.line}\n{lib.line}\n")
    assert read_debs(path) == (TOOL, lib)
    assert TOOL.line == f"tool 2:1.0+b~1-1 {A} t/tool-src/tool_1.0+b~1-1_amd64.deb"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "tool 1",
        f"tool 1 {A}",
        f"tool 1 {A[1:]} t/tool/tool_1_all.deb",
        f"Tool 1 {A} t/tool/tool_1_all.deb",
        f"tool 1 {A} t/tool/tool_1_all.deb x",
        f" tool 1 {A} t/tool/tool_1_all.deb",
        f"tool 1 {A} tool_1_all.deb",
        f"tool 1 {A} /t/tool/tool_1_all.deb",
        f"tool 1 {A} t/../tool_1_all.deb",
        f"tool 1 {A} t/tool/../../tool_1_all.deb",
        f"tool 1 {A} t/tool/tool_1_all.deb?x.deb",
        f"tool 1 {A} t/tool/tool_1_all.whl",
    ],
)
def test_the_first_line_of_another_form_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "debian.lock"
    path.write_text(f"# a comment\n{TOOL.line}\n{line}\nworse\n")
    with pytest.raises(BadInput) as caught:
        read_debs(path)
    assert caught.value.message == "is not of the form NAME VERSION SHA256 PATH"
    assert (caught.value.where, caught.value.advice) == (f"{path}: line 3", "make lock")


def test_every_path_of_our_lock_has_the_name_of_its_package_and_version() -> None:
    debs = read_debs(ROOT / DEBIAN)
    files = {deb.path.rpartition("/")[2]: deb for deb in debs}
    assert len(files) == len(debs) > 100
    for name, deb in files.items():
        assert name in {deb_name(deb.name, deb.version, kind) for kind in ("all", "amd64")}


@pytest.mark.parametrize(
    ("source", "version", "path"),
    [
        ("abc", "1", "a/abc/abc_1_all.deb"),
        ("lib", "1", "lib/lib/abc_1_all.deb"),
        ("libx", "2:1", "libx/libx/abc_1_all.deb"),
        ("libxy", "1:2:1", "libx/libxy/abc_1_all.deb"),
        ("xlib", "1", "x/xlib/abc_1_all.deb"),
    ],
)
def test_a_path_follows_from_source_and_version(source: str, version: str, path: str) -> None:
    assert pool_path(source, deb_name("abc", version, "all")) == path


# --- download ----------------------------------------------------------------------------------------------


def mirror_of(folder: Path, files: dict[str, bytes]) -> str:
    """Write a mirror with these files, by their path in its pool; return its URL."""
    url = folder.as_uri()
    for name, data in files.items():
        path = Path(pool_url(str(folder), name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return url


def locked(folder: Path, **contents: bytes) -> list[Deb]:
    """Return packages of these names and contents, as a lock has them."""
    debs = []
    for name, data in contents.items():
        path = folder / name
        path.write_bytes(data)
        debs.append(Deb(name, "1", sha256_of(path), f"{name[0]}/{name}/{name}_1_all.deb"))
    return debs


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose apt names no mirror; the folder of the archive of old packages, which is empty."""
    monkeypatch.setattr(
        debian_packages, "read_mirrors", lambda own="": (own, f"{own}-security") if own else ()
    )
    monkeypatch.setattr(debian_packages, "_ARCHIVE", (tmp_path / "archive").as_uri())
    return tmp_path / "archive"


def contents(paths: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def test_packages_come_from_the_pools_of_a_mirror_and_its_security_updates(old: Path, tmp_path: Path) -> None:
    one, two = locked(tmp_path, one=b"1", two=b"2")
    mirror = mirror_of(tmp_path / "debian", {two.path: b"2"})
    mirror_of(tmp_path / "debian-security", {one.path: b"1"})
    assert contents(fetch_debs([one, two], [mirror], 0, tmp_path / "cache")) == [b"1", b"2"]


def test_what_the_mirrors_no_longer_have_comes_from_the_archive_of_the_next_day(
    old: Path, tmp_path: Path
) -> None:
    one, two = locked(tmp_path, one=b"1", two=b"2")
    mirror = mirror_of(tmp_path / "debian", {one.path: b"1"})
    mirror_of(old / "debian-security/20261129T000000Z", {two.path: b"2"})
    assert contents(fetch_debs([one, two], [mirror], 1_795_824_000, tmp_path / "cache")) == [b"1", b"2"]
    with pytest.raises(EnvironmentCannot, match=r"two_1_all\.deb"):
        fetch_debs([one, two], [mirror], 0, tmp_path / "other")


def test_archives_are_those_of_debian_and_of_its_security_team() -> None:
    assert archives(1_795_824_000) == (
        "http://snapshot.debian.org/archive/debian/20261129T000000Z",
        "http://snapshot.debian.org/archive/debian-security/20261129T000000Z",
    )


def test_without_a_named_mirror_apt_s_are_asked(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = locked(tmp_path, one=b"1")
    mirror = mirror_of(tmp_path / "debian", {one.path: b"1"})
    monkeypatch.setattr(debian_packages, "read_mirrors", lambda own="": (own or mirror,))
    assert contents(fetch_debs([one], [], 0, tmp_path / "cache")) == [b"1"]
    with pytest.raises(EnvironmentCannot):
        fetch_debs([one], ["file:///no/mirror"], 0, tmp_path / "other")


def test_what_is_in_the_folder_is_not_downloaded_again(old: Path, tmp_path: Path) -> None:
    one, two = locked(tmp_path, one=b"1", two=b"2")
    cache = tmp_path / "a/cache"
    fetch_debs([one], [mirror_of(tmp_path / "first", {one.path: b"1"})], 0, cache)
    second = mirror_of(tmp_path / "second", {two.path: b"2"})
    assert contents(fetch_debs([two, one], [second], 0, cache)) == [b"2", b"1"]
    assert contents(fetch_debs([one, two], [], 0, cache)) == [b"1", b"2"]


def test_a_package_with_other_bytes_is_refused_by_name(old: Path, tmp_path: Path) -> None:
    one, two = locked(tmp_path, one=b"1", two=b"2")
    mirror = mirror_of(tmp_path / "debian", {one.path: b"1", two.path: b"other"})
    with pytest.raises(EnvironmentCannot, match=r"^Debian's package two_1_all\.deb: ") as refused:
        fetch_debs([one, two], [mirror], 0, tmp_path / "cache")
    assert "has another file under this name" in refused.value.message
    assert "--mirror URL" in str(refused.value.advice)


def test_if_no_mirror_answers_the_first_package_says_so(old: Path, tmp_path: Path) -> None:
    debs = locked(tmp_path, one=b"1", two=b"2", three=b"3")
    with pytest.raises(EnvironmentCannot, match=r"one_1_all\.deb: .*: No such file or directory"):
        fetch_debs(debs, [mirror_of(tmp_path / "debian", {debs[1].path: b"2"})], 0, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []  # the others were not asked for

"""The mirrors of a machine are those of its apt, in both formats of apt's lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.packages.apt_sources import pool_url, read_mirrors, source_url


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
    assert read_mirrors("", tmp_path) == ("http://one/debian", "https://two/debian", "http://three/security")


def test_a_given_mirror_replaces_the_machines_own(tmp_path: Path) -> None:
    assert read_mirrors("http://debian", tmp_path) == ("http://debian", "http://debian-security")


def test_updates_of_security_are_in_a_pool_of_their_own() -> None:
    assert pool_url("http://m/debian", "t/t_1.deb") == "http://m/debian/pool/main/t/t_1.deb"
    security = pool_url("http://m/debian-security", "t/t_1.deb")
    assert security == "http://m/debian-security/pool/updates/main/t/t_1.deb"


@pytest.mark.parametrize(
    "source",
    [
        "http://m/debian",
        "http://m/debian/",
        "deb http://m/debian bookworm main",
        "deb [check-valid-until=no] http://m/debian/ bookworm main",
    ],
)
def test_a_mirror_is_named_by_its_url_or_by_a_line_of_apt_s(source: str) -> None:
    assert source_url(source) == "http://m/debian"

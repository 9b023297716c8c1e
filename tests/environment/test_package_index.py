"""Indexes and folders of links, as the node's own pip configuration names them; and where passwords go."""

from __future__ import annotations

import base64
import os
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment.package_index import PackageIndex
from bench.environment.pip_settings import DEFAULT_INDEX, PipSettings, masked, read_settings
from tests.environment.made_wheels import answer, json_page, make_index, make_wheel, serving, sha256_of

SECRET = "s3cret"


# --- pip's configuration --------------------------------------------------------------------------------


def test_without_a_configuration_the_index_is_pips_own(tmp_path: Path) -> None:
    assert read_settings({"XDG_CONFIG_DIRS": str(tmp_path)}, tmp_path).indexes[0] == DEFAULT_INDEX


def test_a_users_file_overrides_the_sites_and_a_variable_overrides_both(tmp_path: Path) -> None:
    site, user = tmp_path / "site/pip/pip.conf", tmp_path / ".config/pip/pip.conf"
    for path, text in (
        (site, "[global]\nindex-url = http://site/simple\ntrusted-host = site\n"),
        (
            user,
            "[global]\nindex-url = http://user/simple\n[install]\nextra_index_url =\n  http://a\n  http://b\n",
        ),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    variables = {"XDG_CONFIG_DIRS": str(tmp_path / "site")}
    found = read_settings(variables, tmp_path)
    assert found.indexes == ("http://user/simple", "http://a", "http://b")
    assert found.trusted_hosts == ("site",)
    assert read_settings(variables | {"PIP_INDEX_URL": "http://v"}, tmp_path).indexes[0] == "http://v"
    off = read_settings(variables | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}, tmp_path)
    assert off.indexes == ()
    assert read_settings(variables, tmp_path, "http://mine").indexes == ("http://mine",)


def test_a_broken_file_of_configuration_has_no_options(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("no section\n")
    assert read_settings({"PIP_CONFIG_FILE": str(path)}, tmp_path).indexes


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentCannot, match="certificates") as caught:
        PackageIndex(PipSettings((), certificates="/no/such.pem"), tmp_path)
    assert caught.value.where == "/no/such.pem"


# --- pages ----------------------------------------------------------------------------------------------


def test_pages_of_html_and_of_json_and_folders_of_wheels_list_the_same_files(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "some-tool")
    folder = make_index(tmp_path / "index", wheel)

    def as_json(request: SimpleHTTPRequestHandler) -> bool:
        if request.path != "/json/some-tool/":
            return False
        return answer(
            request, json_page(wheel), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}
        )

    with serving(folder, as_json) as server:
        places = [
            PipSettings((server.simple,)),
            PipSettings((f"{server.url}/json",)),
            PipSettings(((folder / "simple").as_uri(),)),
            PipSettings((), find_links=(str(tmp_path / "wheels"),)),
            PipSettings((), find_links=(f"{server.simple}/some-tool/",)),
        ]
        for settings in places:
            index = PackageIndex(settings, tmp_path)
            (file,) = index.files("some-tool")
            assert file.name == wheel.name
            assert file.sha256 in (sha256_of(wheel), None)
            assert index.size(file) == wheel.stat().st_size
            with index.open(file.url) as opened:
                assert opened.read() == wheel.read_bytes()
            assert index.files("another") in ([], [file])
            assert index.troubles == ()


def test_an_index_that_does_not_answer_is_named_once_and_not_asked_again(tmp_path: Path) -> None:
    with serving(tmp_path, lambda request: answer(request, b"", code=503)) as server:
        index = PackageIndex(PipSettings((server.simple,)), tmp_path)
        assert index.files("a") == index.files("b") == []
        assert index.troubles == (f"{server.simple}: 503 Service Unavailable",)
        assert server.paths() == ["/simple/a/"]
    silent = PackageIndex(PipSettings((f"{server.url}/simple",)), tmp_path)
    assert silent.files("a") == []
    assert "refused" in silent.troubles[0]


# --- passwords ------------------------------------------------------------------------------------------


def login(request: SimpleHTTPRequestHandler) -> str:
    kind, _, word = request.headers.get("Authorization", " ").partition(" ")
    return base64.b64decode(word).decode() if kind == "Basic" else ""


def asks_for_a_password(request: SimpleHTTPRequestHandler) -> bool:
    return False if login(request) == f"me:{SECRET}" else answer(request, b"", code=401)


def test_a_password_in_the_configuration_opens_the_index_and_is_never_shown(tmp_path: Path) -> None:
    folder = make_index(tmp_path / "index", make_wheel(tmp_path, "a"))
    with serving(folder, asks_for_a_password) as server:
        address = server.simple.removeprefix("http://")
        index = PackageIndex(PipSettings((f"http://me:{SECRET}@{address}",)), tmp_path)
        (file,) = index.files("a")
        assert SECRET not in file.url
        assert index.open(file.url).read()
        wrong = PackageIndex(PipSettings((f"http://me:wr0ng@{address}",)), tmp_path)
        assert wrong.files("a") == []
        (told,) = wrong.troubles
        assert told == f"http://****@{address}: 401 Unauthorized, it asks for another user name or password"


def test_a_password_in_netrc_opens_the_index(tmp_path: Path) -> None:
    folder = make_index(tmp_path / "index", make_wheel(tmp_path, "a"))
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    (tmp_path / ".netrc").chmod(0o600)
    with serving(folder, asks_for_a_password) as server:
        assert PackageIndex(PipSettings((server.simple,)), tmp_path).files("a")


def test_a_password_is_not_sent_to_the_host_of_a_redirect(tmp_path: Path) -> None:
    folder = make_index(tmp_path / "index", make_wheel(tmp_path, "a"))
    with serving(folder) as other:

        def elsewhere(request: SimpleHTTPRequestHandler) -> bool:
            return answer(request, b"", code=302, headers={"Location": f"{other.url}{request.path}"})

        with serving(folder, elsewhere) as server:
            address = server.simple.removeprefix("http://")
            index = PackageIndex(PipSettings((f"http://me:{SECRET}@{address}",)), tmp_path)
            assert index.files("a")
            assert [login(request) for request in server.requests] == [f"me:{SECRET}"]
            assert [login(request) for request in other.requests] == [""]


def test_a_proxy_of_the_configuration_is_used(tmp_path: Path) -> None:
    with serving(make_index(tmp_path / "index", make_wheel(tmp_path, "a"))) as proxy:
        settings = PipSettings(("http://nowhere.invalid/simple",), proxy=proxy.url)
        PackageIndex(settings, tmp_path).files("a")
        assert proxy.paths() == ["http://nowhere.invalid/simple/a/"]


def test_texts_are_shown_without_passwords() -> None:
    text = f"https://me:{SECRET}@host/simple and http://{SECRET}@other/x"
    assert masked(text) == "https://****@host/simple and http://****@other/x"

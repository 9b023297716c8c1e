"""The settings of a machine are those of its own pip, in pip's order of precedence, and are shown masked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.packages.pip_settings import DEFAULT_INDEX, PipSettings, masked, read_settings

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file of a machine whose /etc, sys.prefix and home are folders of the test."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))

    def write_file(path: str, text: str) -> Path:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return tmp_path / path

    return write_file


def found(tmp_path: Path, own_index: str = "", **variables: str) -> PipSettings:
    own = {"XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    return read_settings(own | variables, tmp_path / "home", own_index, tmp_path / "etc")


def test_without_a_configuration_the_index_is_pips_own(tmp_path: Path, write: Write) -> None:
    netrc = str(tmp_path / "home/.netrc")
    assert found(tmp_path) == PipSettings((DEFAULT_INDEX,), netrc=netrc)
    assert found(tmp_path, PIP_CONFIG_FILE=os.devnull) == PipSettings((DEFAULT_INDEX,), netrc=netrc)


def test_later_files_override_and_variables_override_all_files(tmp_path: Path, write: Write) -> None:
    steps = [
        "xdg/pip/pip.conf", "etc/pip.conf", "home/.pip/pip.conf", "home/.config/pip/pip.conf",
        "prefix/pip.conf",
    ]  # fmt: skip
    for number, path in enumerate(steps):
        write(path, f"[global]\nindex-url = http://{number}\n")
        assert found(tmp_path).indexes == (f"http://{number}",)
    write("home/cfg/pip/pip.conf", "[global]\nextra-index-url = http://cfg\n")
    assert found(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "home/cfg")).indexes == ("http://4", "http://cfg")
    assert found(tmp_path, PIP_INDEX_URL="http://v").indexes == ("http://v",)
    assert found(tmp_path, PIP_INDEX_URL="").indexes == ("http://4",)
    assert found(tmp_path, PIP_CONFIG_FILE=os.devnull).indexes == (DEFAULT_INDEX,)


def test_a_named_file_overrides_all_others_and_drops_the_users_own(tmp_path: Path, write: Write) -> None:
    write("xdg/pip/pip.conf", "[global]\nindex-url = http://all\nproxy = http://proxy:1\ncert = /ca.pem\n")
    write(
        "home/.config/pip/pip.conf",
        "[global]\nextra-index-url = http://a\n  http://b\n[install]\nfind-links=/w",
    )
    first = found(tmp_path)
    assert first.indexes == ("http://all", "http://a", "http://b")
    assert (first.find_links, first.proxy, first.certificates) == (("/w",), "http://proxy:1", "/ca.pem")
    own = write("own.conf", "[global]\nindex-url = http://own\n")
    only = found(tmp_path, PIP_CONFIG_FILE=str(own))
    assert (only.indexes, only.find_links, only.proxy) == (("http://own",), (), "http://proxy:1")
    assert found(tmp_path, PIP_CONFIG_FILE=str(tmp_path / "missing")) == first


def test_a_commands_section_goes_before_global_wherever_both_stand(tmp_path: Path, write: Write) -> None:
    write("etc/pip.conf", "[install]\nindex-url = http://install\n[list]\nindex-url = http://list\n")
    write("home/.config/pip/pip.conf", "[global]\nindex-url = http://global\n")
    assert found(tmp_path).indexes == ("http://install",)
    write("prefix/pip.conf", "[install]\nindex-url =\n")  # an empty value takes the option away
    assert found(tmp_path).indexes == ("http://global",)


def test_names_are_read_in_every_form_that_pip_allows(tmp_path: Path, write: Write) -> None:
    write(
        "etc/pip.conf",
        "[global]\ntrusted-host = site\n[install]\nextra_index_url =\n  http://a\n  http://b\n",
    )
    assert found(tmp_path).indexes == (DEFAULT_INDEX, "http://a", "http://b")
    assert found(tmp_path).trusted_hosts == ("site",)
    for yes in ("1", "true", "Yes", "on", "y", "T"):
        assert found(tmp_path, PIP_NO_INDEX=yes, PIP_CONFIG_FILE=os.devnull).indexes == ()
    assert found(tmp_path, PIP_NO_INDEX="0").indexes


@pytest.mark.parametrize("text", ["no section\n", "[global\n", "[global]\nindex-url = http://\udcff\n"])
def test_a_broken_file_has_no_options(tmp_path: Path, write: Write, text: str) -> None:
    write("xdg/pip/pip.conf", "[global]\nindex-url = http://all\n")
    path = write("home/.config/pip/pip.conf", "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert found(tmp_path).indexes == ("http://all",)
    assert found(tmp_path, PIP_CONFIG_FILE=str(path)).indexes == ("http://all",)


def test_of_an_option_that_a_file_has_twice_the_last_one_counts(tmp_path: Path, write: Write) -> None:
    write("etc/pip.conf", "[global]\nindex-url = http://a\n[global]\nindex-url = http://b\n")
    assert found(tmp_path).indexes == ("http://b",)


def test_an_index_of_the_caller_replaces_indexes_and_links_alone(tmp_path: Path, write: Write) -> None:
    variables = {"PIP_INDEX_URL": "http://own", "PIP_FIND_LINKS": "/w", "PIP_PROXY": "proxy:3128"}
    settings = found(tmp_path, "http://given", **variables, PIP_NO_INDEX="1")
    assert (settings.indexes, settings.find_links) == (("http://given",), ())
    assert settings.proxy == "http://proxy:3128"


def test_certificates_and_logins_may_be_named_by_variables_of_other_programs(
    tmp_path: Path, write: Write
) -> None:
    others = {"REQUESTS_CA_BUNDLE": "/requests.pem", "CURL_CA_BUNDLE": "/curl.pem", "NETRC": "/my/netrc"}
    settings = found(tmp_path, **others)
    assert (settings.certificates, settings.netrc) == ("/requests.pem", "/my/netrc")
    assert found(tmp_path, CURL_CA_BUNDLE="/curl.pem").certificates == "/curl.pem"
    assert found(tmp_path, **others, PIP_CERT="/pip.pem").certificates == "/pip.pem"


def test_paths_may_begin_with_the_home(tmp_path: Path, write: Write) -> None:
    settings = found(tmp_path, PIP_CERT="~/ca.pem", PIP_CLIENT_CERT="~/me.pem", PIP_FIND_LINKS="~/w /v")
    home = str(tmp_path / "home")
    assert settings.certificates == f"{home}/ca.pem"
    assert settings.client_certificate == f"{home}/me.pem"
    assert settings.find_links == (f"{home}/w", "/v")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:s3cret@host/simple and http://s3cret@other/x", "https://****@host/simple and http://****@other/x"),
        ("https://me:s3cret@part@host/simple", "https://****@host/simple"),
        ("https://me:s3/cret#?@host/simple", "https://****@host/simple"),
        ("https://host/simple", "https://host/simple"),
    ],
)  # fmt: skip
def test_texts_are_shown_without_passwords(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("named", [None, "own.conf", "missing.conf", os.devnull])
def test_pip_itself_merges_the_files_alike(tmp_path: Path, write: Write, named: str | None) -> None:
    """The files of this machine's /etc and sys.prefix count on both sides."""
    write("home/.pip/pip.conf", "[install]\nproxy = legacy:1\n")
    write("home/.config/pip/pip.conf", "[global]\nproxy = user:1\n")
    write("own.conf", "[global]\nproxy = own:1\n")
    variables = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    if named:
        variables["PIP_CONFIG_FILE"] = named if named == os.devnull else str(tmp_path / named)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    values = dict(re.findall(r"^(\w+)\.proxy='(.*)'$", listed, re.MULTILINE))
    expected = values.get("install") or values.get("global")
    proxy = found(tmp_path, **variables).proxy
    assert proxy == (f"http://{expected}" if expected else "")

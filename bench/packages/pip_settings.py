"""Read where this machine's own pip would find packages: its configuration files and environment variables.

The files are read here, without pip, which a node may lack. https://pip.pypa.io/en/stable/topics/configuration
describes them. Passwords stay in memory: `masked` removes them from every text that is shown.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

DEFAULT_INDEX = "https://pypi.org/simple"  # pip's own default for --index-url
_SECTIONS = ("global", "download", "install")
_VARIABLES = "variables"  # the section of options in PIP_* variables
_TRUE = ("y", "yes", "t", "true", "on", "1")
_LOGIN = re.compile(r"(?<=://)\S*@")


class PipSettings(NamedTuple):
    """The options of pip that decide where packages come from; an empty text is an option that is not set."""

    indexes: tuple[str, ...]  # URLs or folders; the first is asked first
    find_links: tuple[str, ...] = ()  # folders, or URLs of pages with links
    certificates: str = ""  # file or folder of certificates that are trusted in place of the system's
    client_certificate: str = ""
    proxy: str = ""  # empty: the proxies of the environment
    trusted_hosts: tuple[str, ...] = ()  # hosts whose certificates are not checked
    netrc: str = ""  # file of logins


def masked(text: str) -> str:
    """Replace the user name and password of every URL in a text."""
    return _LOGIN.sub("****@", text)


def read_settings(
    environment: Mapping[str, str], home: Path, own_index: str = "", etc: Path = Path("/etc")
) -> PipSettings:
    """Return pip's settings on this machine, with `own_index`, if it is not empty, as their only index."""
    options = _options(environment, home, etc)

    def path(text: str) -> str:
        return str(home / text[2:]) if text.startswith("~/") else text

    indexes = [options.get("index-url", DEFAULT_INDEX), *options.get("extra-index-url", "").split()]
    if options.get("no-index", "").lower() in _TRUE:
        indexes = []
    proxy = options.get("proxy", "")
    bundle = environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE", "")
    return PipSettings(
        indexes=(own_index,) if own_index else tuple(indexes),
        find_links=() if own_index else tuple(map(path, options.get("find-links", "").split())),
        certificates=path(options.get("cert", "") or bundle),
        client_certificate=path(options.get("client-cert", "")),
        proxy=proxy if "://" in proxy or not proxy else f"http://{proxy}",
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
        netrc=environment.get("NETRC") or str(home / ".netrc"),
    )


def _options(environment: Mapping[str, str], home: Path, etc: Path) -> dict[str, str]:
    """Merge the options of all files, and those of the environment's variables, by pip's precedence.

    A later file replaces the option in the same section. A command's section then goes before "global", and
    the variables go before both. An option without a value does not count.
    """
    merged: dict[tuple[str, str], str] = {}
    for path in _files(environment, home, etc):
        merged.update(_file_options(path))
    for name, value in environment.items():
        if name.startswith("PIP_"):
            merged[_VARIABLES, _normal(name[len("PIP_") :])] = value
    return {
        name: value
        for section in (*_SECTIONS, _VARIABLES)
        for (own, name), value in merged.items()
        if own == section and value
    }


def _files(environment: Mapping[str, str], home: Path, etc: Path) -> Iterator[Path]:
    """Yield the configuration files in the order in which later ones override; PIP_CONFIG_FILE is the last.

    The user's own files do not count where PIP_CONFIG_FILE names a file.
    """
    named = environment.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    folders = environment.get("XDG_CONFIG_DIRS") or f"{etc}/xdg"
    yield from (Path(folder) / "pip/pip.conf" for folder in folders.split(":") if folder)
    yield etc / "pip.conf"
    if not (named and Path(named).exists()):
        yield home / ".pip/pip.conf"
        yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _file_options(path: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield section, name and value of a file's options; nothing for a file that pip itself would refuse."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return
    for section in parser.sections():
        for name, value in parser.items(section):
            yield (section, _normal(name)), value


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")

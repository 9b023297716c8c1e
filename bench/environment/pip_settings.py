"""Read where the node's own pip would find packages: its configuration files and environment variables.

The files are read here, without pip, which a node may lack. https://pip.pypa.io/en/stable/topics/configuration
describes them. Passwords stay in memory: `masked` removes them from every text that is shown.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_INDEX = "https://pypi.org/simple"  # pip's own default for --index-url
_SECTIONS = ("global", "download", "install")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The options of pip that decide where packages come from."""

    indexes: tuple[str, ...]  # URLs; the first is asked first
    find_links: tuple[str, ...] = ()  # folders, or URLs of pages with links
    certificates: str | None = None  # file of certificates that are trusted in place of the system's
    client_certificate: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()  # hosts whose certificates are not checked

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return user names and passwords in the URLs, which no message may show."""
        urls = (*self.indexes, *self.find_links, self.proxy or "")
        return tuple(found.removesuffix("@") for url in urls for found in _PASSWORD.findall(url))


def masked(text: str) -> str:
    """Replace the user name and password of every URL in a text."""
    return _PASSWORD.sub("****@", text)


def read_settings(environment: Mapping[str, str], home: Path, own_index: str | None = None) -> PipSettings:
    """Return pip's settings on this machine; `own_index` is an index to use in place of all others."""
    values: dict[str, str] = {}
    for path in _files(environment, home):
        values |= _file_values(path)
    variables = {name.removeprefix("PIP_").lower().replace("_", "-"): value
                 for name, value in environment.items() if name.startswith("PIP_") and value}  # fmt: skip
    values |= variables
    indexes = (values.get("index-url", DEFAULT_INDEX), *values.get("extra-index-url", "").split())
    if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = ()
    links = values.get("find-links", "").split()
    return PipSettings(
        indexes=(own_index,) if own_index else indexes,
        find_links=() if own_index else tuple(links),
        certificates=values.get("cert"),
        client_certificate=values.get("client-cert"),
        proxy=values.get("proxy"),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
    )


def _files(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the configuration files in the order in which pip reads them: later ones override."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    folders = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    yield from (Path(folder) / "pip/pip.conf" for folder in folders.split(":") if folder)
    yield Path("/etc/pip.conf")
    yield home / ".pip/pip.conf"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _file_values(path: Path) -> dict[str, str]:
    """Return the options of one file; an unreadable file has none, as for a pip of another user."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    values: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    return values

"""The interface of a connection to a node, and the errors of connecting.

openssh.py implements it with OpenSSH's client, and over_fabric.py with Fabric if there is no such client.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.base.errors import EnvironmentCannot
from bench.push.hosts import Host

CONNECT_SECONDS = 15  # until a machine accepts a connection and speaks SSH
KEEPALIVE_SECONDS = 15


class Unreachable(EnvironmentCannot):
    """No SSH session can be opened, or the open one broke."""


class HostKeyRefused(EnvironmentCannot):
    """The host key is unknown or has changed."""


class ConnectionBroke(OSError):
    """A connection ended before the exit code of its command arrived."""


def plain(text: str) -> str:
    """Replace control characters, which a terminal would obey: nodes are not trusted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text.replace("\t", " "))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a host, by the configuration of ssh."""

    user: str
    address: str
    port: int
    gateway: str = ""  # jump host or proxy command; empty: none

    @property
    def known_as(self) -> str:
        """The name of the host in known_hosts."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


class Channel(Protocol):
    """A command that runs on a node. Each method raises TimeoutError if it waits longer than `seconds`."""

    def send(self, data: memoryview, seconds: float) -> int:
        """Send some of the data; return how many bytes. BrokenPipeError if the command reads no more."""

    def end_input(self) -> None:
        """Let the command find the end of its standard input."""

    def receive(self, seconds: float) -> bytes:
        """Return some of the command's output; nothing at its end."""

    def receive_errors(self, seconds: float) -> bytes:
        """Return some of the command's error output; nothing at its end."""

    def exit_code(self, seconds: float) -> int:
        """Wait for the command to end; ConnectionBroke if its exit code does not arrive."""

    def close(self) -> None:
        """End the command if it still runs, and free what carries it."""


class Connection(Protocol):
    """An open connection to a node. Its methods raise ConnectionBroke if it breaks."""

    @property
    def is_open(self) -> bool:
        """Whether the connection was still there when last seen."""

    def start(self, command: str, seconds: float) -> Channel:
        """Run a command by the login shell; TimeoutError if it has not started after `seconds`."""

    def close(self) -> None:
        """End the connection, and with it any command that still runs."""


class Carrier(Protocol):
    """A module that connects to nodes."""

    def open_connection(self, host: Host, ssh_config: Path | None) -> Connection:
        """Connect to a host and log in; Unreachable or HostKeyRefused, with advice, if that fails."""

    def endpoint_of(self, host: Host, ssh_config: Path | None) -> Endpoint:
        """Return where a connection to a host leads."""


def refused_user(user: str, reason: str, where: str, advice: str | None = None) -> Unreachable:
    """Return the error for a login that the host refused; only the beginning of its `reason` is shown."""
    usual = "another user: USER@HOST; another key: --identity FILE, or IdentityFile in ~/.ssh/config"
    what = f'user "{user}" was refused: {plain(reason)[:200]}'
    return Unreachable(what, where=where, advice=advice or usual)


def locked_key(where: str) -> Unreachable:
    """Return the error for a private key that only its owner's passphrase opens; `where` is the host."""
    advice = "add it to an agent: ssh-add; bench does not ask for passphrases"
    return Unreachable("the SSH key has a passphrase", where=where, advice=advice)


def unknown_host_key(key: str, where: str) -> HostKeyRefused:
    """Return the error for a host that known_hosts does not name; `key` is its key's type and fingerprint."""
    advice = "compare it with what the provider shows, and connect once with ssh"
    return HostKeyRefused(f"its host key is not known: {key}", where=where, advice=advice)


def changed_host_key(key: str, known_as: str, where: str) -> HostKeyRefused:
    """Return the error for a host whose key is another than known_hosts has under the name `known_as`."""
    return HostKeyRefused(
        f"its host key has changed: {key} is not the known one",
        where=where,
        advice="a new machine has the address, or the connection is intercepted: ask the provider, "
        f"then ssh-keygen -R {shlex.quote(known_as)}",
    )

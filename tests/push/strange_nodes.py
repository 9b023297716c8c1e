"""Nodes that answer what they like: a double for the parsers, and an SSH server on this machine."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko

from bench.push.remote import CommandResult, Here

CONTROLS = "\x1b]0;owned\x07 \x1b[31m \r \x08 \x9b2J \x85 \u202e \u2066 \u200b\nbench: a line of its own"
FORBIDDEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


class Answers(Here):
    """A node that answers every script with a text of `answer`."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        return CommandResult(0, self._answer(script).encode("utf-8", "replace"), b"")

    def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        take(self.ask(script).out)
        return CommandResult(0, b"", b"")


class _Server(paramiko.ServerInterface):
    """Lets everybody in; `serve` gets each channel on which a command is asked for."""

    def __init__(
        self,
        serve: Callable[[Any, bytes], None],
        asked: threading.Event,
        over: threading.Event,
        *,
        opens: bool,
        accepts: bool,
    ) -> None:
        self._serve, self._asked, self._over = serve, asked, over
        self._opens, self._accepts = opens, accepts

    def check_auth_publickey(self, username: str, key: Any) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._asked.set()
        if not self._opens:
            self._over.wait()
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        if not self._accepts:
            self._over.wait()
        threading.Thread(target=self._serve, args=(channel, command), daemon=True).start()
        return True


@contextmanager
def ssh_server(
    home: Path, serve: Callable[[Any, bytes], None], *, opens: bool = True, accepts: bool = True
) -> Iterator[tuple[int, threading.Event]]:
    """Serve SSH on a free port of this machine; below `home`, write what the user has in ~/.ssh.

    The event is set once a channel is asked for. At the end, the port and all connections are closed.
    """
    asked, over = threading.Event(), threading.Event()
    transports: list[paramiko.Transport] = []
    host_key, user_key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    user_key.write_private_key_file(str(home / ".ssh/id_ecdsa"))
    line = f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n"
    (home / ".ssh/known_hosts").write_text(line)
    # OpenSSH does not look for its files below $HOME.
    (home / ".ssh/config").write_text(
        f"Host *\n  UserKnownHostsFile {home}/.ssh/known_hosts\n  IdentityFile {home}/.ssh/id_ecdsa\n"
    )

    def accept() -> None:
        with suppress(OSError):
            while True:
                connected, _ = listener.accept()
                transport = paramiko.Transport(connected)
                transports.append(transport)
                transport.add_server_key(host_key)
                with suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=_Server(serve, asked, over, opens=opens, accepts=accepts))

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield port, asked
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the thread that accepts
        listener.close()
        accepting.join(60)
        for transport in transports:
            transport.close()
            transport.join(60)


def wait_until_closed(channel: Any) -> None:
    """Return once the connection of a channel has ended."""
    while channel.get_transport().is_active():
        time.sleep(0.05)


def mark_of(command: bytes) -> bytes:
    """Return the mark that begins the answer to a command of bench.push.remote."""
    return command.partition(b"printf %s ")[2].partition(b";")[0]

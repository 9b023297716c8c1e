"""One node's shell: over SSH by Fabric, as the user's own ssh would reach it, or on this machine.

Host keys are checked as strictly as ssh does with StrictHostKeyChecking=yes. Agents are asked for signatures
and never forwarded. There are no passwords here: not on a command line, not in a log, not in memory.
"""

from __future__ import annotations

import io
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.base.errors import BadInput, EnvironmentCannot, Mistake
from bench.push import known_hosts
from bench.push.hosts import Host
from bench.push.ssh_channel import AnsweringAgent, send

if TYPE_CHECKING:
    from fabric import Connection

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0  # without a byte; what takes longer says so itself
_KEEPALIVE_SECONDS = 15
_CHUNK = 2**18
_LARGEST_ANSWER = 64 * 2**20  # a node may be anybody's: what it says is not taken without end


class Unreachable(EnvironmentCannot):
    """No SSH session can be had, or the one there was is gone."""


class HostKeyRefused(EnvironmentCannot):
    """Whoever answers there is not known to be the node."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode(errors="replace")

    @property
    def reason(self) -> str:
        """The last line of what it complained of, fit for a terminal."""
        said = (self.err or self.out).decode(errors="replace").strip().splitlines()
        return plain(said[-1])[:300] if said else f"exit code {self.code}, and no reason given"


def plain(text: str) -> str:
    """Without what a terminal would take for a command: the node may be anybody's."""
    return "".join(c if c.isprintable() else "?" for c in text.replace("\t", " "))


class Node(Protocol):
    """What can be asked of a node. Unreachable is raised when it does not answer any more."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult: ...

    def read(self, script: str, take: Callable[[bytes], object]) -> CommandResult:
        """As ask(), handing on what comes, as it comes."""

    def close(self) -> None: ...


def demand(node: Node, script: str, what: str, seconds: float = ANSWER_SECONDS) -> str:
    """The answer's text, or an error that says what could not be done."""
    answer = node.ask(script, seconds=seconds)
    if answer.code:
        raise EnvironmentCannot(f"{what}: {answer.reason}")
    return answer.text


class Here:
    """This machine, for whoever is logged in where the jobs are submitted."""

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        try:
            done = subprocess.run(
                ["sh", "-c", script], input=b"".join(pieces),
                capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unreachable(f"no answer in {seconds:.0f} s") from None
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def read(self, script: str, take: Callable[[bytes], object]) -> CommandResult:
        answer = self.ask(script, seconds=3600)
        take(answer.out)
        return answer

    def close(self) -> None:
        """Nothing is held."""


class Remote:
    """A node over SSH. A connection that broke is opened again by the next question."""

    def __init__(self, host: Host, ssh_config: Path | None = None) -> None:
        self._host, self._ssh_config = host, ssh_config
        self._connection: Connection | None = None

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        out = io.BytesIO()

        def take(data: bytes) -> None:
            if out.tell() + len(data) > _LARGEST_ANSWER:
                self.close()
                raise EnvironmentCannot("it answers without end", where=self._host.name)
            out.write(data)

        answer = self._exchange(script, pieces, take, seconds)
        return CommandResult(answer.code, out.getvalue(), answer.err)

    def read(self, script: str, take: Callable[[bytes], object]) -> CommandResult:
        return self._exchange(script, (), take, ANSWER_SECONDS)

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(Exception):  # it may be broken already, in any way
                connection.close()

    def _exchange(
        self, script: str, pieces: Iterable[bytes], take: Callable[[bytes], object], seconds: float
    ) -> CommandResult:
        from paramiko.ssh_exception import SSHException

        held = self._connection
        connection = held if held is not None and held.is_connected else self._open()
        answer = AnsweringAgent(take)
        command, said = answer.ask(script)
        try:
            channel = connection.create_session()
            channel.settimeout(seconds)
            channel.exec_command(command)
            send(channel, chain([said], pieces))
            while data := channel.recv(_CHUNK):
                answer.take(data)
            err = b""
            while (data := channel.recv_stderr(_CHUNK)) and len(err) < _LARGEST_ANSWER:
                err += data
            code = channel.recv_exit_status()
            channel.close()
        except (SSHException, OSError, EOFError) as error:
            self.close()
            why = (
                f"no answer for {seconds:.0f} s"
                if isinstance(error, TimeoutError)
                else "the connection broke"
            )
            raise Unreachable(why, where=self._host.name) from None
        if code < 0:  # the connection went before the command did
            self.close()
            raise Unreachable("the connection broke", where=self._host.name)
        if not answer.begun:
            reason = CommandResult(code, answer.before, err).reason
            raise EnvironmentCannot(
                f"its login shell runs no command: {reason}",
                where=self._host.name,
                advice=f"try by hand: ssh {self._host.name} true",
            )
        return CommandResult(code, b"", err)

    def _open(self) -> Connection:
        connection = _connection(self._host, self._ssh_config)
        try:
            _connect(connection, self._host)
        except BaseException:
            with suppress(Exception):
                connection.client.close()
            raise
        self._connection = connection
        return connection


# --- how ssh would connect ------------------------------------------------------------------------------


def refuse_twins(hosts: Sequence[Host], ssh_config: Path | None) -> None:
    """Two names for one machine, as ~/.ssh/config has them: its runs would be in each other's figures."""
    seen: dict[tuple[str, str, int], str] = {}
    mistakes = []
    for host in hosts:
        way = _connection(host, ssh_config)
        where = (str(way.gateway), str(way.host).lower(), int(way.port))
        if where in seen:
            what = f"the same machine as {seen[where]}: {way.host} port {way.port}"
            mistakes.append(Mistake(host.name, what, "each is measured once: leave one out"))
        seen.setdefault(where, host.name)
    if mistakes:
        raise BadInput("the list of hosts names a machine twice", mistakes=tuple(mistakes))


def _connection(host: Host, ssh_config: Path | None) -> Connection:
    try:
        from fabric import Config, Connection
    except ImportError:
        raise EnvironmentCannot("Fabric is not installed", advice="pip install 'bench[push]'") from None
    config = Config(runtime_ssh_path=str(ssh_config)) if ssh_config else Config()
    keys: dict[str, Any] = {"banner_timeout": CONNECT_SECONDS, "auth_timeout": CONNECT_SECONDS}
    if host.identity is not None:
        keys["key_filename"] = [str(host.identity)]
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=config,
        connect_timeout=int(CONNECT_SECONDS),
        forward_agent=False,
        connect_kwargs=keys,
    )
    hop: Any = connection
    while hop is not None and not isinstance(hop, str):  # every jump host is checked as the node is
        _be_strict(hop)
        hop.forward_agent = False
        hop = hop.gateway
    return connection


def _be_strict(connection: Any) -> None:
    """Known hosts from where ssh has them, and nobody else. (Fabric itself would take anybody.)"""
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            raise HostKeyRefused(
                f"its host key is not known: {key.get_name()} {key.fingerprint}",
                advice="compare it with what the provider shows, and connect once with ssh",
            )

    connection.client.set_missing_host_key_policy(Refuse())
    known_hosts.load(connection.client, connection.ssh_config)


def _connect(connection: Any, host: Host) -> None:
    from paramiko import ssh_exception as ssh

    there = f"{connection.host} port {connection.port}"
    try:
        connection.open()
    except HostKeyRefused as error:
        raise HostKeyRefused(error.message, where=host.name, advice=error.advice) from None
    except ssh.BadHostKeyException as error:
        known_as = connection.host if connection.port == 22 else f"[{connection.host}]:{connection.port}"
        raise HostKeyRefused(
            f"its host key has changed: {error.key.get_name()} {error.key.fingerprint} is not the known one",
            where=host.name,
            advice="a new machine at an old address, or somebody in between: ask the provider, "
            f"then ssh-keygen -R '{known_as}'",
        ) from None
    except ssh.PasswordRequiredException:
        raise Unreachable(
            "the SSH key has a passphrase",
            where=host.name,
            advice="ssh-add it: an agent is asked, we are not",
        ) from None
    except ssh.AuthenticationException as error:
        raise Unreachable(
            f'user "{connection.user}" was refused: {plain(str(error))[:200]}',
            where=host.name,
            advice="another user: USER@HOST; another key: --identity FILE, or IdentityFile in ~/.ssh/config",
        ) from None
    except ssh.NoValidConnectionsError as error:
        first = next(iter(error.errors.values()))
        raise Unreachable(f"{there}: {(first.strerror or str(first)).lower()}", where=host.name) from None
    except socket.gaierror:
        raise Unreachable(f'no machine is called "{connection.host}"', where=host.name) from None
    except TimeoutError:
        raise Unreachable(f"{there}: no answer in {CONNECT_SECONDS:.0f} s", where=host.name) from None
    except (ssh.SSHException, OSError, EOFError) as error:
        what = plain(str(error))[:200] or type(error).__name__
        raise Unreachable(f"{there}: no SSH session: {what}", where=host.name) from None
    connection.transport.set_keepalive(_KEEPALIVE_SECONDS)

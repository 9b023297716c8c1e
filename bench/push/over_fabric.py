"""Reach a node by Fabric, where there is no OpenSSH client that shares connections: on Windows, for example.

Host keys are checked as strictly as by ssh with StrictHostKeyChecking=yes. Agents sign but are never
forwarded. Passwords are not supported, so no command line, log or memory contains one.
"""

from __future__ import annotations

import logging
import shlex
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from bench.base.distribution import pip_install
from bench.base.errors import BenchError, EnvironmentCannot
from bench.push.connection import (
    CONNECT_SECONDS,
    KEEPALIVE_SECONDS,
    Channel,
    ConnectionBroke,
    Endpoint,
    HostKeyRefused,
    Unreachable,
    changed_host_key,
    locked_key,
    plain,
    refused_user,
    unknown_host_key,
)
from bench.push.hosts import Host

if TYPE_CHECKING:
    from fabric import Connection as Line

_CHUNK = 2**18  # bytes

# Without a handler, Python prints paramiko's log on stderr, with the texts of any machine that answers.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def open_connection(host: Host, ssh_config: Path | None) -> FabricConnection:
    """Connect to a host and log in; Unreachable or HostKeyRefused, with advice, if that fails."""
    line = line_to(host, ssh_config)
    try:
        connect(line, host)
    except BaseException:
        with suppress(Exception):
            line.client.close()
        raise
    return FabricConnection(line)


class FabricConnection:
    """A connection that paramiko holds in this process."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def is_open(self) -> bool:
        """Whether paramiko's transport is still active."""
        return bool(self._line.is_connected)

    def start(self, command: str, seconds: float) -> Channel:
        """Start a command; close a channel that does not accept it in time, which ends paramiko's wait."""
        with _as_broken_connection():
            channel = self._line.transport.open_session(timeout=seconds)
            closing = threading.Timer(seconds, _close, (channel,))
            closing.daemon = True
            closing.start()
            try:
                channel.exec_command(command)
            finally:
                closing.cancel()
        return FabricChannel(channel)

    def close(self) -> None:
        """End the connection; errors of one that is broken already are ignored."""
        with suppress(Exception):  # a broken connection may fail to close in any way
            self._line.close()


class FabricChannel:
    """A command that runs in one channel of a connection of paramiko's."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def send(self, data: memoryview, seconds: float) -> int:
        """Send some of the data; return how many bytes. BrokenPipeError if the channel is closed."""
        self._channel.settimeout(seconds)
        try:
            count = int(self._channel.send(data))
        except TimeoutError:
            raise
        except OSError:
            count = 0
        if not count:
            raise BrokenPipeError("the channel is closed")
        return count

    def end_input(self) -> None:
        """Close the sending direction of the channel."""
        self._channel.shutdown_write()

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived of the command's output; nothing at its end."""
        return self._receive(self._channel.recv, seconds)

    def receive_errors(self, seconds: float) -> bytes:
        """Return what has arrived of the command's error output; nothing at its end."""
        return self._receive(self._channel.recv_stderr, seconds)

    def exit_code(self, seconds: float) -> int:
        """Wait for the exit code; ConnectionBroke if the channel closed without one."""
        if not self._channel.status_event.wait(seconds):
            raise TimeoutError
        code = int(self._channel.recv_exit_status())
        if code < 0:
            raise ConnectionBroke
        return code

    def close(self) -> None:
        """Close the channel; errors of a broken connection are ignored."""
        _close(self._channel)

    def _receive(self, receive: Any, seconds: float) -> bytes:
        self._channel.settimeout(seconds)
        with _as_broken_connection():
            data: bytes = receive(_CHUNK)
        return data


def _close(channel: Any) -> None:
    with suppress(Exception):  # a broken connection may fail to close in any way
        channel.close()


@contextmanager
def _as_broken_connection() -> Iterator[None]:
    """Turn all errors into ConnectionBroke: paramiko hands on what its parser raised on a bad packet."""
    try:
        yield
    except (BenchError, OSError):
        raise
    except Exception as error:
        raise ConnectionBroke(f"{type(error).__name__}: {error}") from None


def line_to(host: Host, ssh_config: Path | None) -> Line:
    """Return a connection, not yet open, that checks the host keys of the node and of every jump host."""
    try:
        from fabric import Config, Connection
    except ImportError:
        raise EnvironmentCannot("Fabric is not installed", advice=pip_install("push")) from None
    config = Config(runtime_ssh_path=str(ssh_config)) if ssh_config else Config()
    arguments: dict[str, Any] = {"banner_timeout": CONNECT_SECONDS, "auth_timeout": CONNECT_SECONDS}
    if host.identity is not None:
        arguments["key_filename"] = [str(host.identity)]
    if host.ssh_arguments:
        words = shlex.join(host.ssh_arguments)
        raise EnvironmentCannot(f"its arguments of ssh need OpenSSH's client: {words}", where=host.name)
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=config,
        connect_timeout=CONNECT_SECONDS,
        connect_kwargs=arguments,
    )
    hop: Any = connection
    while hop is not None and not isinstance(hop, str):
        _check_host_keys(hop, host.name)
        hop.forward_agent = False
        hop = hop.gateway
    return connection


def _check_host_keys(connection: Any, where: str) -> None:
    """Make a connection accept only host keys in known_hosts; Fabric's default accepts all host keys."""
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            raise unknown_host_key(f"{key.get_name()} {key.fingerprint}", where)

    connection.client.set_missing_host_key_policy(Refuse())
    _load_known_hosts(connection.client, connection.ssh_config)


def _load_known_hosts(client: Any, options: Mapping[str, str]) -> None:
    """Load into paramiko's client the known_hosts files that ssh would read.

    Their entries are filtered first, because paramiko stops at markers and at damaged lines. It does not
    support host certificates, so @cert-authority lines are skipped. A key revoked in one file is not loaded.
    """
    names = options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    names += options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()
    paths = [Path(name).expanduser() for name in names]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    revoked = {key for line in lines if line.startswith("@revoked") for key in line.split()[3:4]}
    usable = [line for line in lines if _is_host_key(line) and line.split()[2] not in revoked]
    with NamedTemporaryFile("w") as file:
        file.write("".join(f"{line}\n" for line in usable))
        file.flush()
        client.load_system_host_keys(file.name)


def _is_host_key(line: str) -> bool:
    """Whether a line of known_hosts is an entry that paramiko can read."""
    from paramiko.hostkeys import HostKeyEntry

    if line.startswith(("@", "#")):
        return False
    try:
        return HostKeyEntry.from_line(line) is not None
    except Exception:  # paramiko hands on what its parser raised on a damaged key
        return False


def connect(line: Any, host: Host) -> None:
    """Open a connection; if that fails, raise Unreachable or HostKeyRefused, with advice."""
    from paramiko import ssh_exception as ssh

    def unreachable(what: str) -> Unreachable:
        return Unreachable(what, where=host.name)

    endpoint = Endpoint(str(line.user), str(line.host), int(line.port))
    place = f"{line.host} port {line.port}"
    try:
        line.open()
    except HostKeyRefused:
        raise
    except ssh.BadHostKeyException as error:
        key = f"{error.key.get_name()} {error.key.fingerprint}"
        raise changed_host_key(key, endpoint.known_as, host.name) from None
    except ssh.PasswordRequiredException:
        raise locked_key(host.name) from None
    except ssh.AuthenticationException as error:
        raise refused_user(endpoint.user, str(error), host.name) from None
    except ssh.NoValidConnectionsError as error:
        first = next(iter(error.errors.values()))
        raise unreachable(f"{place}: {(first.strerror or str(first)).lower()}") from None
    except socket.gaierror:
        raise unreachable(f'no machine is called "{line.host}"') from None
    except TimeoutError:
        raise unreachable(f"{place}: no answer in {CONNECT_SECONDS} s") from None
    except Exception as error:  # paramiko hands on what its parser raised on a bad packet
        named = isinstance(error, ssh.SSHException | OSError | EOFError)
        what = str(error) if named else f"{type(error).__name__}: {error}"
        raise unreachable(f"{place}: no SSH session: {plain(what)[:200] or type(error).__name__}") from None
    line.transport.set_keepalive(KEEPALIVE_SECONDS)


def endpoint_of(host: Host, ssh_config: Path | None) -> Endpoint:
    """Return where Fabric connects to for a host."""
    line = line_to(host, ssh_config)
    return Endpoint(str(line.user), str(line.host), int(line.port), str(line.gateway or ""))

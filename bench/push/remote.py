"""Run shell scripts on a node over SSH, by Fabric with the user's ssh configuration, or on this machine.

In:  a script and bytes for its standard input. Out: `CommandResult`, or `Unreachable` if the node is gone.
Host keys are checked as strictly as by ssh with StrictHostKeyChecking=yes. Agents sign but are never
forwarded. Passwords are not supported, so no command line, log or memory contains one.
"""

from __future__ import annotations

import io
import logging
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Protocol

from bench.base.distribution import pip_install
from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.push.hosts import Host, twins

if TYPE_CHECKING:
    from fabric import Connection

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0  # longest silence of a node; callers allow more for commands that print nothing
_KEEPALIVE_SECONDS = 15
_CHUNK = 2**18  # bytes
ANSWER_BYTES = 2**20  # longest answer of a node, which is not trusted; callers that need more say so
ERROR_BYTES = 2**20  # of a command's error output that are read; only its last line is shown
SLOWEST_BYTES_PER_SECOND = 10_000  # of a connection, on average; a slower one is given up
_PATIENCE = 4  # how many times the longest silence an exchange may take, however few bytes it has
_LARGEST_GREETING = 2**16  # bytes that a login shell may print before the script starts

# Without a handler, Python prints paramiko's log on stderr, with the texts of any machine that answers.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Unreachable(EnvironmentCannot):
    """No SSH session can be opened, or the open one broke."""


class HostKeyRefused(EnvironmentCannot):
    """The host key is unknown or has changed."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a script that ran on a node."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode(errors="replace")

    @property
    def reason(self) -> str:
        """The last line of the error output, without control characters."""
        lines = (self.err or self.out).decode(errors="replace").strip().splitlines()
        return plain(lines[-1])[:300] if lines else f"exit code {self.code} without a message"


def plain(text: str) -> str:
    """Replace control characters, which a terminal would obey: nodes are not trusted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text.replace("\t", " "))


class Node(Protocol):
    """A machine that runs shell scripts. `ask` and `read` raise Unreachable if it stops answering."""

    def ask(
        self,
        script: str,
        pieces: Iterable[bytes] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        most_bytes: int = ANSWER_BYTES,
    ) -> CommandResult:
        """Run a script with `pieces` as its standard input; `seconds` is the longest silence.

        EnvironmentCannot if the answer is longer than `most_bytes`.
        """

    def read(
        self, script: str, take: Callable[[bytes], object], *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        """Run a script and call `take` with its output as it arrives; the result's `out` stays empty."""

    def close(self) -> None: ...


def demand(node: Node, script: str, what: str, seconds: float = ANSWER_SECONDS) -> str:
    """Run a script and return its output; if it fails, raise EnvironmentCannot, which says `what` failed."""
    answer = node.ask(script, seconds=seconds)
    if answer.code:
        raise EnvironmentCannot(f"{what} failed: {answer.reason}")
    return answer.text


class Here:
    """This machine as a node, for users who are logged in on a login node of Slurm."""

    def ask(
        self,
        script: str,
        pieces: Iterable[bytes] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        most_bytes: int = ANSWER_BYTES,
    ) -> CommandResult:
        command, data = ["sh", "-c", script], b"".join(pieces)
        try:
            done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"no answer in {seconds:.0f} s") from None
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def read(
        self, script: str, take: Callable[[bytes], object], *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        answer = self.ask(script, seconds=max(3600, seconds))
        take(answer.out)
        return answer

    def close(self) -> None:
        """Do nothing: this machine needs no connection."""


class Remote:
    """A node that is reached over SSH. After its connection broke, the next call opens a new one."""

    def __init__(self, host: Host, ssh_config: Path | None = None) -> None:
        self._host, self._ssh_config = host, ssh_config
        self._connection: Connection | None = None

    def ask(
        self,
        script: str,
        pieces: Iterable[bytes] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        most_bytes: int = ANSWER_BYTES,
    ) -> CommandResult:
        out = io.BytesIO()

        def take(data: bytes) -> None:
            if out.tell() + len(data) > most_bytes:
                self.close()
                raise EnvironmentCannot(
                    f"its answer is larger than {most_bytes:,} bytes", where=self._host.name
                )
            out.write(data)

        answer = self._exchange(script, pieces, take, seconds)
        return CommandResult(answer.code, out.getvalue(), answer.err)

    def read(
        self, script: str, take: Callable[[bytes], object], *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        return self._exchange(script, (), take, seconds)

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(Exception):  # a broken connection may fail to close in any way
                connection.close()

    def _exchange(
        self, script: str, pieces: Iterable[bytes], take: Callable[[bytes], object], seconds: float
    ) -> CommandResult:
        from paramiko.ssh_exception import SSHException

        connection = self._connection
        if connection is None or not connection.is_connected:
            connection = self._open()
        answer = MarkedAnswer(take)
        command, script_bytes = answer.command_for(script)
        allowance = Allowance(seconds)
        try:
            with _as_broken_connection():
                channel = connection.transport.open_session(timeout=seconds)
                _execute(channel, command, allowance)
            _send(channel, chain([script_bytes], pieces), allowance)
            while data := _received(channel.recv, channel, allowance):
                answer.take(data)
            err = bytearray()
            while len(err) < ERROR_BYTES and (data := _received(channel.recv_stderr, channel, allowance)):
                err += data
            if not channel.status_event.wait(allowance.silence()):
                raise TimeoutError
            code = channel.recv_exit_status()
            channel.close()
        except TimeoutError:
            self.close()
            raise Unreachable(allowance.why, where=self._host.name) from None
        except (SSHException, OSError, EOFError):
            self.close()
            raise Unreachable("the connection broke", where=self._host.name) from None
        if code < 0:  # the connection broke before the exit code arrived
            self.close()
            raise Unreachable("the connection broke", where=self._host.name)
        if not answer.begun:
            reason = CommandResult(code, answer.greeting, bytes(err)).reason
            message = f"its login shell runs no command: {reason}"
            advice = f"try by hand: ssh {self._host.name} true"
            raise EnvironmentCannot(message, where=self._host.name, advice=advice)
        return CommandResult(code, b"", bytes(err))

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


# --- a script and its answer on one channel -------------------------------------------------------------


class MarkedAnswer:
    """Separates a script's output, by a random mark, from what a login shell prints before it.

    The script travels on standard input, because no two login shells parse a command line alike: csh accepts
    neither a newline nor an exclamation mark between quotes.
    """

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self._mark = f"bench-{secrets.token_hex(8)}"
        self.greeting = b""
        self.begun = False  # True once the mark has arrived: all later bytes are the script's output

    def command_for(self, script: str) -> tuple[str, bytes]:
        """Return the command to execute, and the bytes of the script, which the command reads first.

        A script that a broken connection cut short lacks the mark at its end, and does not run.
        """
        data = f"{script}\n#{self._mark}".encode()
        run_if_whole = f'case $s in *"#{self._mark}") eval "$s";; *) exit 255;; esac'
        return f"exec sh -c 'printf %s {self._mark}; s=$(head -c {len(data)}); {run_if_whole}'", data

    def take(self, data: bytes) -> None:
        """Accept output of the channel; pass on the bytes that follow the mark."""
        if self.begun:
            self._take(data)
            return
        self.greeting, mark, after = (self.greeting + data).partition(self._mark.encode())
        self.begun = bool(mark)
        if after:
            self._take(after)
        if len(self.greeting) > _LARGEST_GREETING:
            raise EnvironmentCannot(f"its login shell prints more than {_LARGEST_GREETING:,} bytes")


class Allowance:
    """The time that one exchange with a node may still take: a fixed time, and more for every byte.

    A node that sends a byte now and then is never silent; so its total time is bounded too.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._until = clock() + _PATIENCE * seconds
        self.why = f"no answer for {seconds:.0f} s"  # the reason for a TimeoutError

    def count(self, count: int) -> None:
        """Allow the time that this many bytes take on the slowest connection."""
        self._until += count / SLOWEST_BYTES_PER_SECOND

    def silence(self) -> float:
        """Return how many seconds the node may be silent from now on; TimeoutError if its time is over."""
        left = self._until - self._clock()
        if left <= 0:
            self.why = f"it answers more slowly than {SLOWEST_BYTES_PER_SECOND:,} bytes a second"
            raise TimeoutError(self.why)
        return min(self._seconds, left)


@contextmanager
def _as_broken_connection() -> Iterator[None]:
    """Turn errors of any type into SSHException: paramiko hands on what its parser raised on a bad packet."""
    from paramiko.ssh_exception import SSHException

    try:
        yield
    except (BenchError, SSHException, OSError, EOFError):
        raise
    except Exception as error:
        raise SSHException(f"{type(error).__name__}: {error}") from None


def _close(channel: Any) -> None:
    with suppress(Exception):  # a broken connection may fail to close in any way
        channel.close()


def _execute(channel: Any, command: str, allowance: Allowance) -> None:
    """Start a command; a channel that does not accept it in time is closed, which ends paramiko's wait."""
    closing = threading.Timer(allowance.silence(), _close, (channel,))
    closing.daemon = True
    closing.start()
    try:
        channel.exec_command(command)
    finally:
        closing.cancel()


def _received(receive: Callable[[int], bytes], channel: Any, allowance: Allowance) -> bytes:
    channel.settimeout(allowance.silence())
    data = receive(_CHUNK)
    allowance.count(len(data))
    return data


def _send(channel: Any, pieces: Iterable[bytes], allowance: Allowance) -> None:
    """Send all pieces and close the channel's input.

    If `pieces` fails, the input stays open: the node's program would take its end for the end of the data.
    """
    for piece in _readable(pieces):
        try:
            _send_piece(channel, piece, allowance)
        except TimeoutError:
            raise
        except OSError:  # the command ended before it read all input: its exit code tells the reason
            break
    with suppress(OSError):
        channel.shutdown_write()


def _send_piece(channel: Any, piece: bytes, allowance: Allowance) -> None:
    rest = memoryview(piece)
    while rest:
        channel.settimeout(allowance.silence())
        count = channel.send(rest)
        if not count:
            raise OSError("the channel is closed")
        allowance.count(count)
        rest = rest[count:]


def _readable(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces; EnvironmentCannot, which names the local file, if one cannot be read."""
    try:
        yield from pieces
    except OSError as error:
        what = f"cannot be read on this machine: {error.strerror}"
        raise EnvironmentCannot(what, where=error.filename and str(error.filename)) from None


# --- connecting as ssh would ----------------------------------------------------------------------------


def refuse_twins(hosts: Sequence[Host], ssh_config: Path | None) -> None:
    """Refuse hosts that ~/.ssh/config resolves to one machine: their runs would slow each other down."""
    connections = [(host.name, _connection(host, ssh_config)) for host in hosts]
    mistakes = tuple(
        twins(
            (name, (str(c.gateway), str(c.host).lower(), int(c.port)), f": {c.host} port {c.port}")
            for name, c in connections
        )
    )
    if mistakes:
        raise BadInput("the list of hosts names a machine twice", mistakes=mistakes)


def _connection(host: Host, ssh_config: Path | None) -> Connection:
    """Return a connection, not yet open, that checks the host keys of the node and of every jump host."""
    try:
        from fabric import Config, Connection
    except ImportError:
        raise EnvironmentCannot("Fabric is not installed", advice=pip_install("push")) from None
    config = Config(runtime_ssh_path=str(ssh_config)) if ssh_config else Config()
    arguments: dict[str, Any] = {"banner_timeout": CONNECT_SECONDS, "auth_timeout": CONNECT_SECONDS}
    if host.identity is not None:
        arguments["key_filename"] = [str(host.identity)]
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=config,
        connect_timeout=int(CONNECT_SECONDS),
        forward_agent=False,
        connect_kwargs=arguments,
    )
    hop: Any = connection
    while hop is not None and not isinstance(hop, str):
        _check_host_keys(hop)
        hop.forward_agent = False
        hop = hop.gateway
    return connection


def _check_host_keys(connection: Any) -> None:
    """Make a connection accept only host keys in known_hosts; Fabric's default accepts all host keys."""
    from paramiko import MissingHostKeyPolicy

    class Refuse(MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            message = f"its host key is not known: {key.get_name()} {key.fingerprint}"
            advice = "compare it with what the provider shows, and connect once with ssh"
            raise HostKeyRefused(message, advice=advice)

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
    texts = [path.read_text(errors="replace") for path in paths if path.is_file()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    revoked = {key for line in lines if line.startswith("@revoked") for key in line.split()[3:4]}
    usable = [line for line in lines if _is_host_key(line) and line.split()[2] not in revoked]
    with NamedTemporaryFile("w", prefix="bench-known-hosts-") as file:
        file.write("".join(f"{line}\n" for line in usable))
        file.flush()
        client.load_system_host_keys(file.name)


def _is_host_key(line: str) -> bool:
    """Whether a line of known_hosts is an entry that paramiko can read."""
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    if line.startswith(("@", "#")):
        return False
    try:
        return HostKeyEntry.from_line(line) is not None
    except InvalidHostKey:
        return False


def _connect(connection: Any, host: Host) -> None:
    """Open a connection; if that fails, raise Unreachable or HostKeyRefused, with advice."""
    from paramiko import ssh_exception as ssh

    def unreachable(what: str, advice: str | None = None) -> Unreachable:
        return Unreachable(what, where=host.name, advice=advice)

    endpoint = f"{connection.host} port {connection.port}"
    try:
        with _as_broken_connection():
            connection.open()
    except HostKeyRefused as error:
        raise HostKeyRefused(error.message, where=host.name, advice=error.advice) from None
    except ssh.BadHostKeyException as error:
        name = connection.host if connection.port == 22 else f"[{connection.host}]:{connection.port}"
        raise HostKeyRefused(
            f"its host key has changed: {error.key.get_name()} {error.key.fingerprint} is not the known one",
            where=host.name,
            advice="a new machine has the address, or the connection is intercepted: ask the provider, "
            f"then ssh-keygen -R '{name}'",
        ) from None
    except ssh.PasswordRequiredException:
        advice = "add it to an agent: ssh-add; bench does not ask for passphrases"
        raise unreachable("the SSH key has a passphrase", advice) from None
    except ssh.AuthenticationException as error:
        what = f'user "{connection.user}" was refused: {plain(str(error))[:200]}'
        advice = "another user: USER@HOST; another key: --identity FILE, or IdentityFile in ~/.ssh/config"
        raise unreachable(what, advice) from None
    except ssh.NoValidConnectionsError as error:
        first = next(iter(error.errors.values()))
        raise unreachable(f"{endpoint}: {(first.strerror or str(first)).lower()}") from None
    except socket.gaierror:
        raise unreachable(f'no machine is called "{connection.host}"') from None
    except TimeoutError:
        raise unreachable(f"{endpoint}: no answer in {CONNECT_SECONDS:.0f} s") from None
    except (ssh.SSHException, OSError, EOFError) as error:
        what = plain(str(error))[:200] or type(error).__name__
        raise unreachable(f"{endpoint}: no SSH session: {what}") from None
    connection.transport.set_keepalive(_KEEPALIVE_SECONDS)

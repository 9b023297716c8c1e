"""Run shell scripts on a node over SSH, or on this machine.

In:  a script and bytes for its standard input. Out: `CommandResult`, or `Unreachable` if the node is gone.
OpenSSH's client carries the bytes where there is one, else Fabric; both refuse unknown host keys.
"""

from __future__ import annotations

import io
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push import openssh, over_fabric
from bench.push.connection import Carrier, Channel, Connection, Unreachable, plain
from bench.push.hosts import Host, twins

ANSWER_SECONDS = 60.0  # longest silence of a node; callers allow more for commands that print nothing
ANSWER_BYTES = 2**20  # longest answer of a node, which is not trusted; callers that need more say so
ERROR_BYTES = 2**20  # of a command's error output that are read; only its last line is shown
SLOWEST_BYTES_PER_SECOND = 10_000  # of a connection, on average; a slower one is given up
_PATIENCE = 3  # how many times the longest silence an exchange may take, however few bytes it has
_LARGEST_GREETING = 2**16  # bytes that a login shell may print before the script starts


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a script that ran on a node."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """The output as text; bytes that are not UTF-8 become replacement characters."""
        return self.out.decode(errors="replace")

    @property
    def reason(self) -> str:
        """The last line of the error output, without control characters."""
        lines = (self.err or self.out).decode(errors="replace").strip().splitlines()
        return plain(lines[-1])[:300] if lines else f"exit code {self.code} without a message"


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

    def close(self) -> None:
        """End the connection, if there is one; a later call opens another."""


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
        """Run a script by sh; its output is read as a whole, so `most_bytes` is not used."""
        command, data = ["sh", "-c", script], b"".join(pieces)
        try:
            done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"no answer in {seconds:.0f} s") from None
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def read(
        self, script: str, take: Callable[[bytes], object], *, seconds: float = ANSWER_SECONDS
    ) -> CommandResult:
        """Run a script for up to an hour, or `seconds` if more; call `take` once, with the whole output."""
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
        """Run a script over SSH; a node whose answer is too long loses its connection."""
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
        """Run a script over SSH, without a limit of its output: `take` has to refuse too much of it."""
        return self._exchange(script, (), take, seconds)

    def close(self) -> None:
        """End the connection, if there is one; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _exchange(
        self, script: str, pieces: Iterable[bytes], take: Callable[[bytes], object], seconds: float
    ) -> CommandResult:
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._open()
        answer = MarkedAnswer(take)
        command, script_bytes = answer.command_for(script)
        allowance = Allowance(seconds)
        try:
            channel = connection.start(command, allowance.silence())
            _send(channel, chain([script_bytes], pieces), allowance)
            while data := allowance.counted(channel.receive(allowance.silence())):
                answer.take(data)
            err = bytearray()
            while len(err) < ERROR_BYTES:
                if not (data := allowance.counted(channel.receive_errors(allowance.silence()))):
                    break
                err += data
            code = channel.exit_code(allowance.silence())
            channel.close()
        except TimeoutError:
            self.close()
            raise Unreachable(allowance.why, where=self._host.name) from None
        except (OSError, EOFError):
            self.close()
            raise Unreachable("the connection broke", where=self._host.name) from None
        if not answer.begun:
            raise self._without_mark(CommandResult(code, answer.greeting, bytes(err)))
        return CommandResult(code, b"", bytes(err))

    def _without_mark(self, result: CommandResult) -> EnvironmentCannot:
        """Return the error for a command that ended without the mark before its output."""
        message = f"its login shell runs no command: {result.reason}"
        advice = f"try by hand: ssh {self._host.name} true"
        return EnvironmentCannot(message, where=self._host.name, advice=advice)

    def _open(self) -> Connection:
        self.close()
        self._connection = _carrier().open_connection(self._host, self._ssh_config)
        return self._connection


def _carrier() -> Carrier:
    """Return the module that connects to nodes from this machine."""
    return openssh if openssh.is_installed() else over_fabric


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

        A script that a broken connection cut short lacks the mark at its end, and does not run. Nothing is
        printed before the script was read: some versions of kubectl, such as 1.32, discard output that
        arrives before they have made all streams, and they send no input before that.
        """
        data = f"{script}\n#{self._mark}".encode()
        run_if_whole = f'case $s in *"#{self._mark}") eval "$s";; *) exit 255;; esac'
        return f"exec sh -c 's=$(head -c {len(data)}); printf %s {self._mark}; {run_if_whole}'", data

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
            message = f"its login shell prints more than {_LARGEST_GREETING:,} bytes"
            raise EnvironmentCannot(message, advice="let the shell's start-up files print less")


class Allowance:
    """The time that one exchange with a node may still take: a fixed time, and more for every byte.

    A node that sends a byte now and then is never silent; so its total time is bounded too.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._until = clock() + _PATIENCE * seconds

    @property
    def why(self) -> str:
        """The reason for a TimeoutError."""
        if self._clock() < self._until:
            return f"no answer for {self._seconds:.0f} s"
        return f"it answers more slowly than {SLOWEST_BYTES_PER_SECOND:,} bytes a second"

    def count(self, count: int) -> None:
        """Allow the time that this many bytes take on the slowest connection."""
        self._until += count / SLOWEST_BYTES_PER_SECOND

    def counted(self, data: bytes) -> bytes:
        """Allow the time that these bytes take, and return them."""
        self.count(len(data))
        return data

    def silence(self) -> float:
        """Return how many seconds the node may be silent from now on; TimeoutError if its time is over."""
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError(self.why)
        return min(self._seconds, left)


def _send(channel: Channel, pieces: Iterable[bytes], allowance: Allowance) -> None:
    """Send all pieces and close the channel's input.

    If `pieces` fails, the input stays open: the node's program would take its end for the end of the data.
    """
    for piece in _readable(pieces):
        try:
            _send_piece(channel, piece, allowance)
        except BrokenPipeError:  # the command ended before it read all input: its exit code tells the reason
            break
    with suppress(OSError):
        channel.end_input()


def _send_piece(channel: Channel, piece: bytes, allowance: Allowance) -> None:
    rest = memoryview(piece)
    while rest:
        count = channel.send(rest, allowance.silence())
        allowance.count(count)
        rest = rest[count:]


def _readable(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces; EnvironmentCannot, which names the local file, if one cannot be read."""
    try:
        yield from pieces
    except OSError as error:
        what = f"cannot be read on this machine: {error.strerror}"
        raise EnvironmentCannot(what, where=error.filename and str(error.filename)) from None


def refuse_twins(hosts: Sequence[Host], ssh_config: Path | None) -> None:
    """Refuse hosts that ~/.ssh/config resolves to one machine: their runs would slow each other down."""
    found = [(host.name, _carrier().endpoint_of(host, ssh_config)) for host in hosts]
    mistakes = tuple(
        twins(
            (name, (end.gateway, end.address.lower(), end.port), f": {end.address} port {end.port}")
            for name, end in found
        )
    )
    if mistakes:
        raise BadInput("the list of hosts names a machine twice", mistakes=mistakes)

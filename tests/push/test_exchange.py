"""One exchange with a node: what is sent, how long it may take, and how each failure is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push import openssh, over_fabric, remote
from bench.push.connection import Unreachable
from bench.push.hosts import Host
from bench.push.remote import Allowance, CommandResult, Here, MarkedAnswer, Remote, demand, refuse_twins

HOST = Host("gpu1", "10.0.0.1")


class Channel:
    """A channel that takes a few bytes at a time, notes all calls, and answers."""

    def __init__(self, out: list[bytes], err: list[bytes], code: int, at_once: int = 1 << 20) -> None:
        self._out, self._err, self._code, self._at_once = out, err, code, at_once
        self.sent = bytearray()
        self.ended = self.closed = 0
        self.silences: list[float] = []

    def send(self, data: memoryview, seconds: float) -> int:
        self.silences.append(seconds)
        self.sent += data[: self._at_once]
        return min(len(data), self._at_once)

    def end_input(self) -> None:
        self.ended += 1
        raise OSError("the program there has ended")

    def receive(self, seconds: float) -> bytes:
        self.silences.append(seconds)
        return self._out.pop(0) if self._out else b""

    def receive_errors(self, seconds: float) -> bytes:
        self.silences.append(seconds)
        return self._err.pop(0) if self._err else b""

    def exit_code(self, seconds: float) -> int:
        self.silences.append(seconds)
        return self._code

    def close(self) -> None:
        self.closed += 1


class Connection:
    """A connection with one channel for each command; `refuses` is raised instead."""

    def __init__(self, **channel: Any) -> None:
        self._given: dict[str, Any] = {"out": [b"out"], "err": [b"e1 ", b"e2"], "code": 3} | channel
        self.is_open, self.closed = True, 0
        self.refuses: Exception | None = None
        self.channels: list[Channel] = []
        self.commands: list[tuple[str, float]] = []

    def start(self, command: str, seconds: float) -> Channel:
        self.commands.append((command, seconds))
        if self.refuses is not None:
            raise self.refuses
        mark = command.partition("printf %s ")[2].partition(";")[0].encode()
        given = self._given | {"out": [mark, *self._given["out"]], "err": list(self._given["err"])}
        self.channels.append(Channel(**given))
        return self.channels[-1]

    def close(self) -> None:
        self.is_open = False
        self.closed += 1


Opened = list[Connection]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """The connections that the next calls open, in order; those that were opened are removed."""
    waiting: Opened = []

    def open_connection(host: Host, ssh_config: Path | None) -> Connection:
        assert (host, ssh_config) == (HOST, Path("config"))
        return waiting.pop(0)

    monkeypatch.setattr(openssh, "is_installed", lambda: True)
    monkeypatch.setattr(openssh, "open_connection", open_connection)
    return waiting


def node() -> Remote:
    return Remote(HOST, Path("config"))


# --- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "err", "reason"),
    [
        (b"out", b"first\nlast\n", "last"),
        (b"first\nlast\n\n", b"", "last"),
        (b"", b"", "exit code 7 without a message"),
        (b" \n", b"", "exit code 7 without a message"),
        (b"", b"bell\x07 \xff", "bell? \ufffd"),
        (b"", b"x" * 301, "x" * 300),
    ],
)
def test_the_reason_of_a_failure_is_the_last_line_that_was_said(out: bytes, err: bytes, reason: str) -> None:
    assert CommandResult(7, out, err).reason == reason
    assert CommandResult(7, b"caf\xe9", b"").text == "caf\ufffd"


def test_a_demand_returns_what_a_script_said_or_says_what_failed() -> None:
    assert demand(Here(), "echo yes", "asking") == "yes\n"
    with pytest.raises(EnvironmentCannot, match="asking failed: no such thing"):
        demand(Here(), "echo no such thing >&2; exit 1", "asking")
    given: list[float] = []
    done = CommandResult(0, b"", b"")
    asked: Any = SimpleNamespace(ask=lambda script, seconds: given.append(seconds) or done)
    demand(asked, "true", "asking", 7.0)
    demand(asked, "true", "asking")
    assert given == [7.0, 60.0]


def test_this_machine_answers_as_a_node_does() -> None:
    assert Here().ask("cat; echo err >&2; exit 3", [b"a", b"b"]) == CommandResult(3, b"ab", b"err\n")
    taken: list[bytes] = []
    answer = Here().read("echo out", taken.append)
    assert (answer.code, taken) == (0, [b"out\n"])
    with pytest.raises(Unreachable, match="no answer in 0 s"):
        Here().ask("exec sleep 600", seconds=0.01)


@pytest.mark.parametrize(("seconds", "allowed"), [(60.0, 3600), (9000.0, 9000.0)])
def test_a_file_of_this_machine_may_take_an_hour(
    monkeypatch: pytest.MonkeyPatch, seconds: float, allowed: float
) -> None:
    given: list[float] = []
    done = CommandResult(0, b"", b"")
    monkeypatch.setattr(Here, "ask", lambda self, script, *, seconds: given.append(seconds) or done)
    Here().read("true", print, seconds=seconds)
    assert given == [allowed]


def test_an_exchange_sends_the_script_and_the_data_and_returns_the_answer(opened: Opened) -> None:
    one = Connection(at_once=3)
    opened.append(one)
    remote_node = node()
    assert remote_node.ask("cat", [b"1234567", b"89"]) == CommandResult(3, b"out", b"e1 e2")
    (channel,) = one.channels
    mark = one.commands[0][0].partition("printf %s ")[2].partition(";")[0]
    assert bytes(channel.sent) == f"cat\n#{mark}123456789".encode()
    assert (channel.ended, channel.closed, one.closed) == (1, 1, 0)
    assert channel.silences == [60.0] * len(channel.silences)
    taken: list[bytes] = []
    assert remote_node.read("cat", taken.append, seconds=5.0) == CommandResult(3, b"", b"e1 e2")
    assert (taken, one.commands[1][1]) == ([b"out"], 5.0)
    assert len(one.channels) == 2  # on the same connection


def test_a_connection_that_broke_is_opened_again(opened: Opened) -> None:
    first, second = Connection(), Connection()
    opened += [first, second]
    remote_node = node()
    remote_node.ask("true")
    first.is_open = False
    remote_node.ask("true")
    assert (first.closed, len(second.channels)) == (1, 1)
    remote_node.close()
    remote_node.close()
    assert second.closed == 1


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError(), "no answer for 60 s"),
        (OSError("reset"), "the connection broke"),
        (EOFError(), "the connection broke"),
    ],
)
def test_a_connection_that_fails_is_given_up(opened: Opened, error: Exception, why: str) -> None:
    one = Connection()
    one.refuses = error
    opened.append(one)
    with pytest.raises(Unreachable) as lost:
        node().ask("true")
    assert (lost.value.message, lost.value.where, one.closed) == (why, "gpu1", 1)


def test_an_answer_that_is_too_long_ends_the_connection(opened: Opened) -> None:
    one = Connection(out=[b"12", b"34"])
    opened += [one, Connection(out=[b"12", b"34"])]
    remote_node = node()
    assert remote_node.ask("date", most_bytes=4).out == b"1234"
    with pytest.raises(EnvironmentCannot, match="its answer is larger than 3 bytes") as refused:
        remote_node.ask("date", most_bytes=3)
    assert (refused.value.where, one.closed) == ("gpu1", 1)


def test_a_shell_that_runs_nothing_is_told_with_a_way_to_try(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nologin(Connection):
        def start(self, command: str, seconds: float) -> Channel:
            return Channel([b"go ", b"away\n"], [], 1)

    opened.append(Nologin())
    with pytest.raises(EnvironmentCannot) as refused:
        node().ask("true")
    assert refused.value.message == "its login shell runs no command: go away"
    assert (refused.value.where, refused.value.advice) == ("gpu1", "try by hand: ssh gpu1 true")


def test_openssh_carries_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, carrier in ((True, openssh), (False, over_fabric)):
        monkeypatch.setattr(openssh, "is_installed", lambda installed=installed: installed)
        assert remote._carrier() is carrier


def test_an_answer_begins_behind_its_mark_wherever_that_arrives() -> None:
    out: list[bytes] = []
    answer = MarkedAnswer(out.append)
    command, _ = answer.command_for("true")
    mark = command.partition("printf %s ")[2].partition(";")[0].encode()
    answer.take(b"Welcome" + mark[:5])
    assert (answer.begun, out) == (False, [])
    answer.take(mark[5:] + b"one")
    answer.take(b"two")
    assert (answer.begun, answer.greeting, out) == (True, b"Welcome", [b"one", b"two"])


def test_a_greeting_may_have_64_kib(opened: Opened) -> None:
    for more, accepted in ((0, True), (1, False)):
        answer = MarkedAnswer(lambda data: pytest.fail("no answer yet"))
        if accepted:
            answer.take(b"g" * 65_536)
            assert (answer.begun, len(answer.greeting)) == (False, 65_536)
            continue
        with pytest.raises(EnvironmentCannot, match="its login shell prints more than 65,536 bytes"):
            answer.take(b"g" * (65_536 + more))


def test_a_local_file_that_cannot_be_read_is_named(opened: Opened) -> None:
    def unreadable(*given: object) -> Any:
        raise OSError(*given)
        yield b""

    failure = (5, "Input/output error")
    for given, where in (((*failure, Path("a.gz")), "a.gz"), (failure, None)):
        opened.append(Connection())
        with pytest.raises(EnvironmentCannot, match="cannot be read on this machine: Input/output") as failed:
            node().ask("cat", unreadable(*given))
        assert failed.value.where == where


def test_the_limits_of_an_exchange() -> None:
    assert (remote.ANSWER_SECONDS, remote.SLOWEST_BYTES_PER_SECOND) == (60.0, 10_000)
    assert (remote.ANSWER_BYTES, remote.ERROR_BYTES) == (1_048_576, 1_048_576)


# --- time -------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_exchange_has_three_times_its_longest_silence_and_the_time_of_its_bytes() -> None:
    clock = Clock()
    allowance = Allowance(10.0, clock)
    assert allowance.silence() == 10.0
    clock.now = 25.0
    assert (allowance.silence(), allowance.why) == (5.0, "no answer for 10 s")
    assert allowance.counted(bytes(20_000)) == bytes(20_000)
    assert allowance.silence() == 7.0
    clock.now = 32.0
    assert allowance.why == "it answers more slowly than 10,000 bytes a second"
    with pytest.raises(TimeoutError, match="it answers more slowly"):
        allowance.silence()


def test_every_byte_that_was_sent_or_received_allows_more_time(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(Allowance, "count", lambda self, count: counted.append(count))
    opened.append(Connection(at_once=4))
    node().ask("true", [b"12345"])
    assert counted[-8:] == [4, 1, len(b"bench-") + 16, 3, 0, 3, 2, 0]  # data; mark, answer; errors


# --- hosts that are one machine ---------------------------------------------------------------------------


Twins = Callable[[list[tuple[str, str | None, str, int]]], None]


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Twins:
    """Return a function that refuses hosts, given as (name, gateway, address, port), that are one machine."""

    def refuse(given: list[tuple[str, str | None, str, int]]) -> None:
        ends = {name: SimpleNamespace(gateway=g, address=a, port=p) for name, g, a, p in given}
        monkeypatch.setattr(openssh, "is_installed", lambda: True)
        monkeypatch.setattr(openssh, "endpoint_of", lambda host, config: ends[host.name])
        refuse_twins([Host(name, name) for name in ends], None)

    return refuse


def test_hosts_of_one_endpoint_are_refused(twins: Twins) -> None:
    twins([("a", None, "10.0.0.1", 22), ("b", None, "10.0.0.1", 23), ("c", "door", "10.0.0.1", 22)])
    with pytest.raises(BadInput, match="the list of hosts names a machine twice") as refused:
        twins([("a", None, "Node.example", 22), ("b", None, "node.example", 22)])
    (mistake,) = refused.value.mistakes
    assert "node.example port 22" in str(mistake).lower()

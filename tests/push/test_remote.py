"""Failing connections: truncated data never passes as complete, and answers are bounded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.push import openssh, remote
from bench.push.connection import Unreachable
from bench.push.hosts import Host
from bench.push.remote import Allowance, MarkedAnswer, Remote


class Channel:
    """A channel whose command succeeds with any input."""

    def __init__(self, answer: Iterator[bytes], sent: Callable[[bytes], None]) -> None:
        self._answer, self._sent = answer, sent
        self.ended = False
        self.mark = b""

    def send(self, data: memoryview, seconds: float) -> int:
        self._sent(bytes(data))
        return len(data)

    def end_input(self) -> None:
        self.ended = True

    def receive(self, seconds: float) -> bytes:
        mark, self.mark = self.mark, b""
        return mark or next(self._answer, b"")

    def receive_errors(self, seconds: float) -> bytes:
        return b""

    def exit_code(self, seconds: float) -> int:
        return 0

    def close(self) -> None: ...


class Connection:
    """A connection that gives one channel to every command."""

    is_open = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def start(self, command: str, seconds: float) -> Channel:
        """Answer with the mark first, like sh."""
        self._channel.mark = command.partition("printf %s ")[2].partition(";")[0].encode()
        return self._channel

    def close(self) -> None: ...


Connect = Callable[[Channel], Remote]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connected(channel: Channel) -> Remote:
        monkeypatch.setattr(openssh, "is_installed", lambda: True)
        monkeypatch.setattr(openssh, "open_connection", lambda *_: Connection(channel))
        return Remote(Host("gpu1", "gpu1"))

    return connected


def by_sh(
    script: str, greeting: bytes = b"", of_the_script: int | None = None
) -> tuple[int, bytes, MarkedAnswer]:
    """Run a script with a greeting printed before it, or with only the first bytes of the script."""
    out: list[bytes] = []
    answer = MarkedAnswer(out.append)
    command, said = answer.command_for(script)
    given = said[:of_the_script] + b"stdin"
    done = subprocess.run(["sh", "-c", command], input=given, capture_output=True, check=False)
    for byte in greeting + done.stdout:
        answer.take(bytes([byte]))
    return done.returncode, b"".join(out), answer


def test_output_of_a_login_shell_is_not_part_of_the_answer() -> None:
    script = "printf '%s\\n' \"it's\" here!\ncat\nexit 7"
    for greeting in (b"", b"*** Welcome to rack 7 ***\nbench-no-mark\n"):
        code, out, answer = by_sh(script, greeting)
        assert (code, out, answer.greeting) == (7, b"it's\nhere!\nstdin", greeting)


def test_the_script_does_not_depend_on_the_login_shell() -> None:
    """csh accepts neither a newline nor an exclamation mark between quotes."""
    command, _ = MarkedAnswer(print).command_for("a\nb ! c '")
    assert "\n" not in command and "!" not in command and command.count("'") == 2


def test_nothing_is_printed_before_the_script_was_read(tmp_path: Path) -> None:
    """Some versions of kubectl lose output that arrives before they can send input."""
    command, script = MarkedAnswer(print).command_for("echo answer")
    head, out = tmp_path / "head", tmp_path / "out"
    head.write_text(f'#!/bin/sh\nwc -c <{out} >{tmp_path}/before\nexec {shutil.which("head")} "$@"\n')
    head.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with out.open("wb") as file:
        subprocess.run(["sh", "-c", command], input=script, stdout=file, env=environment, check=True)
    assert int((tmp_path / "before").read_text()) == 0
    assert out.read_text().endswith("answer\n")


def test_a_truncated_script_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    script = f"rmdir {tmp_path}/kept; echo done"
    for cut in range(len(script)):
        assert by_sh(script, of_the_script=cut)[:2] == (255, b"")
    assert (tmp_path / "kept").exists()


def test_a_login_shell_that_runs_nothing_is_reported(connect: Connect) -> None:
    class Nologin(Channel):
        def receive(self, seconds: float) -> bytes:
            return next(self._answer, b"")

    channel = Nologin(iter([b"This account is currently not available.\n"]), lambda piece: None)
    with pytest.raises(EnvironmentCannot, match="runs no command: This account is currently not available"):
        connect(channel).ask("true")


def test_a_stalled_connection_while_sending_is_not_an_end_of_file(connect: Connect) -> None:
    def stall(_piece: bytes) -> None:
        raise TimeoutError("timed out")

    channel = Channel(iter(()), stall)
    with pytest.raises(Unreachable, match="no answer for 60 s"):
        connect(channel).ask("cat >file", [b"first", b"second"])
    assert not channel.ended


def test_a_local_read_error_while_sending_is_not_an_end_of_file(connect: Connect) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise OSError(5, "Input/output error", "layer.gz")

    channel = Channel(iter(()), lambda piece: None)
    with pytest.raises(EnvironmentCannot, match="cannot be read on this machine: Input/output") as caught:
        connect(channel).ask("cat >file", pieces())
    assert not isinstance(caught.value, Unreachable) and caught.value.where == "layer.gz"
    assert not channel.ended


def test_a_command_that_stops_reading_is_reported_by_its_exit_code(connect: Connect) -> None:
    def closed(_piece: bytes) -> None:
        raise BrokenPipeError

    assert connect(Channel(iter([b"full"]), closed)).ask("cat >file", [b"first"]).text == "full"


def test_an_endless_answer_is_refused(connect: Connect) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(2**20)

    with pytest.raises(EnvironmentCannot, match="answer is larger than"):
        connect(Channel(endless(), lambda piece: None)).ask("date")


def endless_zeros() -> Iterator[bytes]:
    while True:
        yield bytes(2**16)


@pytest.mark.parametrize("most_bytes", [2**16, remote.ANSWER_BYTES])
def test_each_question_has_a_longest_answer(connect: Connect, most_bytes: int) -> None:
    with pytest.raises(EnvironmentCannot, match=f"larger than {most_bytes:,} bytes"):
        connect(Channel(endless_zeros(), lambda piece: None)).ask("date", most_bytes=most_bytes)
    exact = Channel(iter([bytes(most_bytes)]), lambda piece: None)
    assert len(connect(exact).ask("date", most_bytes=most_bytes).out) == most_bytes


def test_endless_error_output_is_read_only_as_far_as_it_is_shown(connect: Connect) -> None:
    channel, read = Channel(iter([b"done"]), lambda piece: None), []

    def receive_errors(_seconds: float) -> bytes:
        read.append(2**14)
        return b"E" * 2**14

    channel.receive_errors = receive_errors  # type: ignore[method-assign]
    assert connect(channel).ask("date").text == "done"
    assert sum(read) == remote.ERROR_BYTES


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_that_is_never_silent_has_no_endless_time() -> None:
    clock = Clock()
    allowance = Allowance(60.0, clock)
    looks = 0
    with pytest.raises(TimeoutError, match="more slowly than 10,000 bytes a second"):
        while True:
            assert 0 < allowance.silence() <= 60.0
            clock.now += 1.0  # a byte a second
            allowance.count(1)
            looks += 1
    assert looks == 3 * 60 + 1


def test_a_timeout_says_whether_the_node_was_silent_or_slow() -> None:
    clock = Clock()
    allowance = Allowance(60.0, clock)
    clock.now = 60.0
    assert allowance.why == "no answer for 60 s"
    clock.now = 3 * 60.0
    assert allowance.why == "it answers more slowly than 10,000 bytes a second"


def test_a_large_transfer_has_the_time_that_its_bytes_need() -> None:
    clock = Clock()
    allowance = Allowance(60.0, clock)
    for _ in range(10_000):
        assert allowance.silence() == 60.0
        clock.now += 1.0
        allowance.count(remote.SLOWEST_BYTES_PER_SECOND)

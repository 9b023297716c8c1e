"""Failing connections: truncated data never passes as complete, and answers are bounded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from paramiko import BadHostKeyException, ECDSAKey

from bench.base.errors import EnvironmentCannot
from bench.push import remote
from bench.push.hosts import Host
from bench.push.remote import HostKeyRefused, MarkedAnswer, Remote, Unreachable


class Channel:
    """An SSH channel whose command succeeds, whatever it was sent."""

    def __init__(self, answer: Iterator[bytes], sendall: Callable[[bytes], None]) -> None:
        self._answer, self.sendall = answer, sendall
        self.ended = False

    def recv(self, _count: int) -> bytes:
        mark, self._mark = self._mark, b""
        return mark or next(self._answer, b"")

    def shutdown_write(self) -> None:
        self.ended = True

    def recv_stderr(self, _count: int) -> bytes:
        return b""

    def recv_exit_status(self) -> int:
        return 0

    def settimeout(self, _seconds: float) -> None: ...
    def exec_command(self, command: str) -> None:
        """Answer with the mark first, as sh does."""
        self._mark = command.partition("printf %s ")[2].partition(";")[0].encode()

    def close(self) -> None: ...


Connect = Callable[[Channel], Remote]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connected(channel: Channel) -> Remote:
        line = SimpleNamespace(create_session=lambda: channel, is_connected=True, close=lambda: None)
        monkeypatch.setattr(remote, "_connection", lambda *_: line)
        monkeypatch.setattr(remote, "_connect", lambda *_: None)
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


def test_a_truncated_script_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    script = f"rmdir {tmp_path}/kept; echo done"
    for cut in range(len(script)):
        assert by_sh(script, of_the_script=cut)[:2] == (255, b"")
    assert (tmp_path / "kept").exists()


def test_a_login_shell_that_runs_nothing_is_reported(connect: Connect) -> None:
    channel = Channel(iter([b"This account is currently not available.\n"]), lambda piece: None)
    channel.exec_command = lambda _command: setattr(channel, "_mark", b"")  # type: ignore[method-assign]
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
        raise OSError("Socket is closed")

    assert connect(Channel(iter([b"full"]), closed)).ask("cat >file", [b"first"]).text == "full"


def test_an_endless_answer_is_refused(connect: Connect) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(2**20)

    with pytest.raises(EnvironmentCannot, match="answer is larger than"):
        connect(Channel(endless(), lambda piece: None)).ask("date")


@pytest.mark.parametrize(("port", "known_as"), [(22, "gpu1"), (2222, "[gpu1]:2222")])
def test_the_advice_for_a_changed_host_key_uses_sshs_name(port: int, known_as: str) -> None:
    key = ECDSAKey.generate()

    def refuse() -> None:
        raise BadHostKeyException("gpu1", key, key)

    line = SimpleNamespace(open=refuse, host="gpu1", port=port)
    with pytest.raises(HostKeyRefused) as caught:
        remote._connect(line, Host("gpu1", "gpu1"))
    assert f"ssh-keygen -R '{known_as}'" in str(caught.value.advice)


def test_known_hosts_is_read_with_its_markers_and_in_spite_of_damage(tmp_path: Path) -> None:
    good, bad, authority = (ECDSAKey.generate() for _ in range(3))
    lines = [f"{k.get_name()} {k.get_base64()}" for k in (good, bad, authority)]
    (tmp_path / "known_hosts").write_text(
        f"# mine\n@cert-authority *.example.org {lines[2]}\ngpu1 {lines[0]}\ngpu2 {lines[1]}\n"
        f"gpu3 {lines[0][:-9]}\n@revoked * {lines[1]}\n\n"
    )
    (tmp_path / "config").write_text(
        f"Host *\n  UserKnownHostsFile {tmp_path}/known_hosts\n  GlobalKnownHostsFile {tmp_path}/none\n"
    )
    known = remote._connection(Host("gpu1", "gpu1"), tmp_path / "config").client._system_host_keys
    assert known.check("gpu1", good)
    assert not known.check("gpu2", bad)
    assert known.keys() == ["gpu1"]

"""Each step of reaching a node by Fabric: what is asked, which host keys count, how errors are told."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import BadHostKeyException, ECDSAKey, SSHException
from paramiko.ssh_exception import (
    AuthenticationException,
    NoValidConnectionsError,
    PasswordRequiredException,
)

from bench.base.errors import BenchError, EnvironmentCannot
from bench.push import over_fabric
from bench.push.connection import CONNECT_SECONDS, ConnectionBroke, Endpoint, HostKeyRefused, Unreachable
from bench.push.hosts import Host
from bench.push.over_fabric import FabricChannel, FabricConnection

HOST = Host("gpu1", "10.0.0.1", "me", 2222)


class Channel:
    """A channel of paramiko's that answers with these values, and raises those that are errors."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.seen: list[Any] = []
        self.status_event = SimpleNamespace(wait=lambda seconds: self._answer("wait", seconds))

    def _answer(self, name: str, *given: Any) -> Any:
        self.seen.append((name, *given))
        answer = self._answers.get(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: self._answer(name, *given)


# --- a command ------------------------------------------------------------------------------------------


def test_a_channel_passes_on_data_within_the_time_that_is_left() -> None:
    channel = Channel(send=3, recv=b"out", recv_stderr=b"err", wait=True, recv_exit_status=7)
    made = FabricChannel(channel)
    assert made.send(memoryview(b"abc"), 1.0) == 3
    made.end_input()
    assert (made.receive(2.0), made.receive_errors(3.0), made.exit_code(4.0)) == (b"out", b"err", 7)
    made.close()
    assert channel.seen == [
        ("settimeout", 1.0), ("send", b"abc"), ("shutdown_write",), ("settimeout", 2.0), ("recv", 2**18),
        ("settimeout", 3.0), ("recv_stderr", 2**18), ("wait", 4.0), ("recv_exit_status",), ("close",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "error"),
    [(0, BrokenPipeError), (OSError("Socket is closed"), BrokenPipeError), (TimeoutError(), TimeoutError)],
)
def test_a_channel_that_takes_nothing_is_closed_or_late(answer: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        FabricChannel(Channel(send=answer)).send(memoryview(b"abc"), 1.0)


def test_an_exit_code_that_is_late_or_lost_is_none() -> None:
    with pytest.raises(TimeoutError):
        FabricChannel(Channel(wait=False, recv_exit_status=0)).exit_code(1.0)
    with pytest.raises(ConnectionBroke):
        FabricChannel(Channel(wait=True, recv_exit_status=-1)).exit_code(1.0)
    assert FabricChannel(Channel(wait=True, recv_exit_status=0)).exit_code(1.0) == 0


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (EnvironmentCannot("x"), EnvironmentCannot),
        (TimeoutError("x"), TimeoutError),
        (ConnectionResetError("x"), ConnectionResetError),
        (SSHException("x"), ConnectionBroke),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), ConnectionBroke),
    ],
)
def test_only_errors_that_others_know_are_passed_on(raised: Exception, error: type[Exception]) -> None:
    for receive in (
        FabricChannel(Channel(recv=raised)).receive,
        FabricChannel(Channel(recv_stderr=raised)).receive_errors,
    ):
        with pytest.raises(error):
            receive(1.0)


def test_a_channel_and_a_connection_that_fail_to_close_are_closed() -> None:
    FabricChannel(Channel(close=EOFError())).close()
    line = SimpleNamespace(close=lambda: (_ for _ in ()).throw(EOFError()), is_connected=1)
    made = FabricConnection(line)  # type: ignore[arg-type]
    assert made.is_open is True
    made.close()


class Timer:
    """A timer that has not passed yet; `made` are all of them."""

    made: list[Timer]

    def __init__(self, seconds: float, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.given, self.call = (seconds, arguments), call
        self.daemon = False
        self.did: list[str] = []
        Timer.made.append(self)

    def start(self) -> None:
        assert self.daemon
        self.did.append("start")

    def cancel(self) -> None:
        self.did.append("cancel")


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    Timer.made = []
    monkeypatch.setattr(over_fabric.threading, "Timer", Timer)
    return Timer.made


@pytest.mark.parametrize("refused", [None, SSHException("Channel closed.")])
def test_a_command_that_does_not_start_in_time_is_ended(
    timers: list[Timer], refused: Exception | None
) -> None:
    channel, opened = Channel(exec_command=refused), list[float]()
    transport = SimpleNamespace(open_session=lambda timeout: opened.append(timeout) or channel)
    connection = FabricConnection(SimpleNamespace(transport=transport))  # type: ignore[arg-type]
    if refused:
        with pytest.raises(ConnectionBroke, match="SSHException: Channel closed"):
            connection.start("date", 5.0)
    else:
        assert connection.start("date", 5.0)._channel is channel  # type: ignore[attr-defined]
    assert (opened, channel.seen) == ([5.0], [("exec_command", "date")])
    (timer,) = timers
    assert (timer.given, timer.did) == ((5.0, (channel,)), ["start", "cancel"])
    timer.call(*timer.given[1])
    assert channel.seen[-1] == ("close",)


# --- connecting -----------------------------------------------------------------------------------------


def opening(error: BaseException | None) -> Any:
    """A line that fails to open with this error; `kept` are the seconds between two signs of life."""
    kept: list[int] = []

    def open_it() -> None:
        if error is not None:
            raise error

    transport = SimpleNamespace(set_keepalive=kept.append)
    return SimpleNamespace(open=open_it, user="me", host="gpu1", port="2222", transport=transport, kept=kept)


KEY = ECDSAKey.generate()


@pytest.mark.parametrize(
    ("error", "kind", "message", "advice"),
    [
        (HostKeyRefused("not known"), HostKeyRefused, "not known", None),
        (
            BadHostKeyException("gpu1", KEY, KEY), HostKeyRefused,
            "its host key has changed: ecdsa-sha2-nistp256 SHA256:", "ssh-keygen -R '[gpu1]:2222'",
        ),
        (PasswordRequiredException("x"), Unreachable, "the SSH key has a passphrase", "ssh-add"),
        (AuthenticationException("no\x07"), Unreachable, 'user "me" was refused: no?', "USER@HOST"),
        (
            NoValidConnectionsError({("1", 2): OSError(1, "Connection Refused"), ("2", 2): OSError(1, "x")}),
            Unreachable, "gpu1 port 2222: connection refused", None,
        ),
        (
            NoValidConnectionsError({("1", 2): OSError("No Route")}),
            Unreachable, "gpu1 port 2222: no route", None,
        ),
        (socket.gaierror(-2, "x"), Unreachable, 'no machine is called "gpu1"', None),
        (TimeoutError(), Unreachable, f"gpu1 port 2222: no answer in {CONNECT_SECONDS} s", None),
        (SSHException("Error\x07"), Unreachable, "gpu1 port 2222: no SSH session: Error?", None),
        (OSError("a" * 300), Unreachable, "gpu1 port 2222: no SSH session: " + "a" * 200, None),
        (EOFError(), Unreachable, "gpu1 port 2222: no SSH session: EOFError", None),
        (IndexError("x"), Unreachable, "gpu1 port 2222: no SSH session: IndexError: x", None),
    ],
)  # fmt: skip
def test_each_failure_to_connect_is_told(
    error: Exception, kind: type[BenchError], message: str, advice: str | None
) -> None:
    with pytest.raises(kind) as caught:
        over_fabric.connect(opening(error), HOST)
    told = caught.value
    assert type(told) is kind and told.message.startswith(message)
    assert kind is HostKeyRefused or told.message == message
    assert advice is None or advice in str(told.advice)
    assert told.where == (None if told is error else "gpu1")


def test_a_connection_shows_signs_of_life() -> None:
    line = opening(None)
    over_fabric.connect(line, HOST)
    assert line.kept == [over_fabric.KEEPALIVE_SECONDS]


@pytest.mark.parametrize("error", [Unreachable("no"), KeyboardInterrupt()])
def test_a_connection_that_fails_to_open_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    closed: list[int] = []

    def close() -> None:
        closed.append(1)
        raise EOFError

    line = SimpleNamespace(client=SimpleNamespace(close=close))
    given: list[Any] = []
    monkeypatch.setattr(over_fabric, "line_to", lambda *words: given.append(words) or line)
    monkeypatch.setattr(over_fabric, "connect", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        over_fabric.open_connection(HOST, Path("config"))
    assert (closed, given) == ([1], [(HOST, Path("config"))])
    monkeypatch.setattr(over_fabric, "connect", lambda *_: None)
    assert over_fabric.open_connection(HOST, None)._line is line  # type: ignore[comparison-overlap]
    assert closed == [1]


# --- what is asked of Fabric ------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of ssh in which `far` is behind two doors, and no other file has host keys."""
    path = tmp_path / "config"
    path.write_text(
        "Host far\n  HostName 10.0.0.7\n  User them\n  Port 2200\n  ProxyJump door\n"
        "Host door\n  HostName 10.0.0.8\n  ProxyJump outer\n"
        f"Host *\n  ForwardAgent yes\n  UserKnownHostsFile {tmp_path}/mine {tmp_path}/more\n"
        f"  GlobalKnownHostsFile {tmp_path}/global\n"
    )
    return path


def test_a_line_has_the_hosts_login_and_limits_of_time(config: Path) -> None:
    host = Host("n", "10.0.0.9", "me", 2222, identity=Path("/key"))
    line: Any = over_fabric.line_to(host, config)
    assert (line.host, line.user, line.port, line.connect_timeout) == (
        "10.0.0.9",
        "me",
        2222,
        CONNECT_SECONDS,
    )
    assert line.connect_kwargs == {
        "banner_timeout": CONNECT_SECONDS, "auth_timeout": CONNECT_SECONDS, "key_filename": ["/key"],
    }  # fmt: skip
    assert "key_filename" not in over_fabric.line_to(Host("n", "n"), config).connect_kwargs


def test_no_agent_is_forwarded_and_each_jump_host_is_checked(config: Path) -> None:
    hop: Any = over_fabric.line_to(Host("far", "far"), config)
    hosts = []
    while hop is not None:
        hosts.append(hop.host)
        assert hop.forward_agent is False
        with pytest.raises(HostKeyRefused) as caught:
            hop.client._policy.missing_host_key(hop.client, "x", KEY)
        assert "ecdsa-sha2-nistp256 SHA256:" in caught.value.message and caught.value.where == "far"
        hop = hop.gateway
    assert hosts == ["10.0.0.7", "10.0.0.8", "outer"]


def test_a_program_as_a_way_is_no_host_to_check(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host far\n  ProxyCommand nc %h %p\n")
    line: Any = over_fabric.line_to(Host("far", "far"), tmp_path / "config")
    assert isinstance(line.gateway, str) and line.forward_agent is False


def test_an_endpoint_is_where_the_configuration_leads(config: Path) -> None:
    found = over_fabric.endpoint_of(Host("far", "far"), config)
    assert (found.user, found.address, found.port) == ("them", "10.0.0.7", 2200)
    assert "10.0.0.8" in found.gateway
    assert over_fabric.endpoint_of(HOST, config) == Endpoint("me", "10.0.0.1", 2222, "")


def test_arguments_of_ssh_are_named_with_their_host() -> None:
    with pytest.raises(EnvironmentCannot, match="need OpenSSH's client: -J 'a b'") as caught:
        over_fabric.line_to(Host("n", "n", ssh_arguments=("-J", "a b")), None)
    assert caught.value.where == "n"


def test_without_fabric_the_line_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.__import__

    def no_fabric(name: str, *words: Any) -> Any:
        if name == "fabric":
            raise ImportError
        return own(name, *words)

    monkeypatch.setattr(builtins, "__import__", no_fabric)
    with pytest.raises(EnvironmentCannot, match="Fabric is not installed") as caught:
        over_fabric.line_to(HOST, None)
    assert caught.value.advice is not None and "[push]" in caught.value.advice


# --- known_hosts ------------------------------------------------------------------------------------------


def line_of(name: str, key: ECDSAKey) -> str:
    return f"{name} {key.get_name()} {key.get_base64()}\n"


def test_host_keys_come_from_all_files_and_a_key_revoked_in_one_counts_in_none(
    config: Path, tmp_path: Path
) -> None:
    keys = [ECDSAKey.generate() for _ in range(5)]
    (tmp_path / "mine").write_bytes(
        f"  {line_of('gpu0', keys[0])}# {line_of('gpu4', keys[4])}".encode() + b"\xff\xff\n"
    )
    (tmp_path / "more").write_text(line_of("gpu1", keys[1]) + line_of("gpu3", keys[3]))
    (tmp_path / "global").write_text(line_of("gpu2", keys[2]) + f"@revoked {line_of('*', keys[3])}@revoked\n")
    known = over_fabric.line_to(HOST, config).client._system_host_keys
    assert [known.check(f"gpu{number}", keys[number]) for number in range(5)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_files_of_ssh_are_read_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    keys = [ECDSAKey.generate() for _ in range(2)]
    for number, name in enumerate(("known_hosts", "known_hosts2")):
        (tmp_path / ".ssh" / name).write_text(line_of(f"gpu{number}", keys[number]))
    loaded: list[str] = []
    client = SimpleNamespace(load_system_host_keys=lambda name: loaded.append(Path(name).read_text()))
    read: list[str] = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: read.append(str(path)) or is_file(path))
    over_fabric._load_known_hosts(client, {})
    assert loaded[0].startswith(line_of("gpu0", keys[0]) + line_of("gpu1", keys[1]))
    assert read == [
        f"{tmp_path}/.ssh/known_hosts", f"{tmp_path}/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (line_of("gpu0", KEY).strip(), True), ("", False), ("# comment", False), ("gpu0", False),
        (f"@revoked {line_of('*', KEY)}", False), ("gpu0 unknown-kind AAAA", False),
        ("gpu0 ecdsa-sha2-nistp256 AAAA", False), ("gpu0 ssh-rsa AAAAB3NzaC1yc2E=", False),
        ("gpu0 ecdsa-sha2-nistp256 AAA", False), ("gpu0 ssh-ed25519 /////w==", False),
    ],
)  # fmt: skip
def test_a_line_that_paramiko_cannot_read_is_no_host_key(line: str, is_one: bool) -> None:
    assert over_fabric._is_host_key(line) == is_one

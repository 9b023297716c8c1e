"""The proxy of a meeting lets in only nodes that know the secret; nobody else reaches the store behind it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from bench.base.errors import BadInput, EnvironmentCannot
from bench.cli.main import main
from bench.cli.meeting import meeting_secret
from bench.runner.processes import meeting_proxy
from bench.runner.processes.jobs import Nodes, host_and_port
from bench.runner.processes.meeting_proxy import (
    GREETING,
    LOOPBACK,
    PIECE_BYTES,
    SealedLine,
    UntrustedPeer,
    listening_address,
    open_proxy,
    prove_as_leader,
    prove_as_node,
)

ROOT = Path(__file__).parents[2]
SECRET, OTHER = b"s" * 32, b"t" * 32


def both_sides(
    leader: Callable[[socket.socket], Any], node: Callable[[socket.socket], Any]
) -> tuple[Any, Any]:
    """Let two sides talk over a pair of sockets; return what each returns or raises."""
    lines = socket.socketpair()

    def outcome(side: Callable[[socket.socket], Any], line: socket.socket) -> Any:
        line.settimeout(10)
        try:
            return side(line)
        except (UntrustedPeer, OSError) as error:
            line.close()
            return error

    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(outcome, (leader, node), lines))  # type: ignore[return-value]


def joined() -> tuple[SealedLine, SealedLine]:
    return both_sides(lambda line: prove_as_leader(line, SECRET), lambda line: prove_as_node(line, SECRET))


def test_two_sides_with_one_secret_exchange_bytes_in_both_directions() -> None:
    leader, node = joined()
    leader.send(b"from the leader")
    node.send(b"from the node" * 1000)
    assert node.receive() == b"from the leader"
    assert leader.receive() == b"from the node" * 1000
    node.line.close()
    assert leader.receive() == b""


@pytest.mark.parametrize(("of_leader", "of_node"), [(SECRET, OTHER), (OTHER, SECRET)])
def test_two_secrets_do_not_meet(of_leader: bytes, of_node: bytes) -> None:
    results = both_sides(
        lambda line: prove_as_leader(line, of_leader), lambda line: prove_as_node(line, of_node)
    )
    assert isinstance(results[0], UntrustedPeer)
    assert isinstance(results[1], (UntrustedPeer, OSError))


def test_a_stranger_learns_no_proof_of_the_secret() -> None:
    """The leader proves itself only after the node did, so nothing can be guessed offline."""

    def stranger(line: socket.socket) -> bytes:
        line.sendall(GREETING + bytes(32))
        nonce = line.recv(4096)
        line.sendall(bytes(32))
        return nonce + line.recv(4096)

    refused, seen = both_sides(lambda line: prove_as_leader(line, SECRET), stranger)
    assert isinstance(refused, UntrustedPeer)
    assert len(seen) == 32  # the leader's nonce alone


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(99), bytes(200), GREETING])
def test_another_protocol_is_refused(words: bytes) -> None:
    def stranger(line: socket.socket) -> None:
        line.sendall(words)
        line.shutdown(socket.SHUT_WR)

    refused, _ = both_sides(lambda line: prove_as_leader(line, SECRET), stranger)
    assert isinstance(refused, UntrustedPeer)


def test_a_stranger_who_sends_a_byte_now_and_then_does_not_keep_the_place_of_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting_proxy, "HANDSHAKE_SECONDS", 0.2)
    unproven = threading.Semaphore(0)
    stranger, leader = socket.socketpair()
    with stranger, ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(meeting_proxy.admit, leader, SECRET, 0, unproven)
        stranger.settimeout(0.1)
        for byte in GREETING:
            with suppress(TimeoutError, OSError):
                stranger.sendall(bytes([byte]))
                if stranger.recv(1) == b"":
                    break
        else:
            stranger.close()
            pytest.fail("the leader still waits for the rest of a greeting")
        admitted.result()
    assert unproven.acquire(blocking=False)


def test_the_leaders_own_messages_cannot_be_sent_back_to_it() -> None:
    leader, node = joined()
    leader.send(b"once")
    frame = node.line.recv(4096)
    node.line.sendall(frame)
    with pytest.raises(UntrustedPeer, match="changed"):
        leader.receive()


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        lambda frame: frame[:4] + bytes(len(frame) - 4),
        lambda frame: b"\0\0\0\0" + frame[4:],
        lambda frame: b"\xff\xff\xff\xff" + frame[4:],
        lambda frame: frame[:-1],
    ],
)
def test_a_changed_frame_is_refused(change: Callable[[bytes], bytes]) -> None:
    leader, node = joined()
    node.send(b"a message")
    frame = leader.line.recv(4096)
    relay, end = socket.socketpair()
    leader.line = end
    relay.sendall(change(frame))
    relay.close()
    with pytest.raises(UntrustedPeer):
        leader.receive()


def test_a_frame_that_is_sent_twice_is_refused() -> None:
    leader, node = joined()
    node.send(b"a message")
    frame = leader.line.recv(4096)
    relay, end = socket.socketpair()
    leader.line = end
    relay.sendall(frame + frame)
    assert leader.receive() == b"a message"
    with pytest.raises(UntrustedPeer, match="changed"):
        leader.receive()


def test_more_than_one_piece_arrives_whole() -> None:
    leader, node = joined()
    data = os.urandom(PIECE_BYTES)
    sending = threading.Thread(target=lambda: [node.send(data) for _ in range(3)])
    sending.start()
    assert [leader.receive() for _ in range(3)] == [data] * 3
    sending.join()


def test_nodes_meet_in_one_store_and_a_stranger_finds_none() -> None:
    """The port of the meeting answers nobody without the secret, in torch's protocol or any other."""
    meet = f"{LOOPBACK}:{free_port()}"
    with (
        open_proxy(Nodes(2, 0, meet, "abc"), SECRET) as leader,
        open_proxy(Nodes(2, 1, meet, "abc"), SECRET) as node,
    ):
        stores = [
            dist.TCPStore(*host_and_port(each.store), is_master=False, timeout=timedelta(seconds=20))
            for each in (leader, node)
        ]
        stores[0].set("key", "of the leader")
        assert stores[1].get("key") == b"of the leader"
        with pytest.raises(dist.DistError):
            dist.TCPStore(*host_and_port(meet), is_master=False, timeout=timedelta(seconds=2))
        with open_proxy(Nodes(2, 1, meet, "abc"), OTHER) as stranger, pytest.raises(dist.DistError):
            dist.TCPStore(*host_and_port(stranger.store), is_master=False, timeout=timedelta(seconds=2))
        assert stores[1].get("key") == b"of the leader"


def test_the_leader_listens_at_the_meetings_address_alone_and_its_store_on_loopback() -> None:
    port = free_port()
    with open_proxy(Nodes(2, 0, f"127.0.0.3:{port}", "abc"), SECRET) as nodes:
        assert listeners(port) == ["127.0.0.3"]
        assert listeners(host_and_port(nodes.store)[1]) == [LOOPBACK]


def test_a_port_in_use_is_refused_at_once() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        meet = f"{LOOPBACK}:{taken.getsockname()[1]}"
        with pytest.raises(EnvironmentCannot, match="in use"), open_proxy(Nodes(2, 0, meet, "a"), SECRET):
            pass


def test_an_address_of_another_machine_is_listened_to_on_every_interface() -> None:
    """A router may translate a public address to the leader's own."""
    assert listening_address("127.0.0.1:80") == LOOPBACK
    assert listening_address("localhost:80") in (LOOPBACK, "::1")
    assert listening_address("[::1]:80") == "::1"
    assert listening_address("192.0.2.1:80") == ""


def test_a_proxy_ends_with_the_run() -> None:
    port = free_port()
    with open_proxy(Nodes(2, 0, f"{LOOPBACK}:{port}", "abc"), SECRET):
        assert listeners(port)
    assert not listeners(port)


def test_nothing_that_comes_over_the_network_is_unpickled() -> None:
    for path in (ROOT / "bench").rglob("*.py"):
        text = path.read_text()
        for name in ("import pickle", "gather_object(", "_object_list("):
            assert name not in text, path


@pytest.mark.parametrize(
    ("meet", "options", "reason"),
    [
        ("8.8.8.8:29400", [], "is a public address"),
        ("[2606:4700::1]:29400", [], "is a public address"),
        ("10.0.0.1:29400", [], "--meet without a secret"),
        ("8.8.8.8:29400", ["--meet-in-public"], "--meet without a secret"),
        ("10.0.0.1:29400", ["--meet-secret", "no-such-file"], "no-such-file"),
    ],
)
def test_a_public_address_or_no_secret_is_refused(
    meet: str, options: list[str], reason: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENCH_MEET_SECRET", raising=False)
    words = ["run", str(ROOT / "manifests/quickstart.json"), "--nodes", "2", "--meet", meet, *options]
    assert main(words) == 2
    assert reason in capsys.readouterr().err


def test_the_secret_is_in_a_file_or_the_environment_and_not_short(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("f" * 40 + "\n")
    assert meeting_secret(file, {"BENCH_MEET_SECRET": "e" * 32}) == b"f" * 40
    assert meeting_secret(None, {"BENCH_MEET_SECRET": "e" * 32}) == b"e" * 32
    file.write_text("short\n")
    with pytest.raises(BadInput, match="can be guessed"):
        meeting_secret(file, {})


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def listeners(port: int) -> list[str]:
    """Return the local IPv4 addresses at which somebody listens on this port, and "::" for any of IPv6."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, its_port = address.split(":")
        if int(its_port, 16) == port and state == "0A":
            found.append(socket.inet_ntoa(bytes.fromhex(host)[::-1]))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        if int(line.split()[1].split(":")[1], 16) == port and line.split()[3] == "0A":
            found.append("::")
    return found

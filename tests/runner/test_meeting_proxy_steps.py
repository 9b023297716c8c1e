"""Each step of a meeting's proxy: what is sent, in which order, what is refused, and what ends with it.

The proofs and keys are computed here a second time, as another implementation would.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from bench.base.errors import EnvironmentCannot
from bench.runner.processes import meeting_proxy
from bench.runner.processes.jobs import Nodes
from bench.runner.processes.meeting_proxy import SealedLine, UntrustedPeer
from bench.training.vendor import torch_inside
from tests.patience import PATIENCE_SECONDS

SECRET = b"s" * 32
OF_NODE, OF_LEADER = b"n" * 32, b"l" * 32
GREETING = b"bench meeting 1\n" + OF_NODE
TALK = GREETING + OF_LEADER


def proof(side: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, b"bench proof of the " + side + b"\n" + TALK, hashlib.sha256).digest()


def keys() -> tuple[bytes, bytes]:
    """Return the keys to the node and to the leader: HKDF (RFC 5869) with SHA-256, of 64 bytes."""
    pseudo = hmac.new(TALK, SECRET, hashlib.sha256).digest()
    first = hmac.new(pseudo, b"bench meeting\x01", hashlib.sha256).digest()
    return first, hmac.new(pseudo, first + b"bench meeting\x02", hashlib.sha256).digest()


class Line:
    """A connection whose other side says these bytes, a few at a time; `said` is what this side sends."""

    def __init__(self, *heard: bytes, at_once: int = 7) -> None:
        self._heard, self._at_once = io.BytesIO(b"".join(heard)), at_once
        self.said: list[bytes] = []
        self.limits: list[float | None] = []
        self.is_over = False

    def recv(self, size: int) -> bytes:
        return self._heard.read(min(size, self._at_once))

    def sendall(self, data: bytes) -> None:
        self.said.append(data)

    def settimeout(self, seconds: float | None) -> None:
        self.limits.append(seconds)

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RDWR
        self.is_over = True

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    @property
    def rest(self) -> bytes:
        return self._heard.read()


@pytest.fixture(autouse=True)
def nonces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let each side's nonce be the letter of its name."""
    sizes: list[int] = []

    def token_bytes(size: int) -> bytes:
        sizes.append(size)
        return OF_LEADER if sys._getframe(1).f_code.co_name == "prove_as_leader" else OF_NODE

    with monkeypatch.context() as patch:
        patch.setattr(meeting_proxy.secrets, "token_bytes", token_bytes)
        yield sizes


# --- the proofs -----------------------------------------------------------------------------------------


def test_the_leader_sends_its_proof_after_that_of_the_node(nonces: list[int]) -> None:
    line = Line(GREETING, proof(b"node"), b"more")
    sealed = meeting_proxy.prove_as_leader(line, SECRET)  # type: ignore[arg-type]
    assert line.said == [OF_LEADER, proof(b"leader")]
    assert (nonces, line.rest) == ([32], b"more")
    to_node, to_leader = map(ChaCha20Poly1305, keys())
    assert sealed.send_key.encrypt(bytes(12), b"x", None) == to_node.encrypt(bytes(12), b"x", None)
    assert sealed.receive_key.encrypt(bytes(12), b"x", None) == to_leader.encrypt(bytes(12), b"x", None)


def test_a_node_sends_its_proof_first_and_then_checks_the_leaders(nonces: list[int]) -> None:
    line = Line(OF_LEADER, proof(b"leader"), b"more")
    sealed = meeting_proxy.prove_as_node(line, SECRET)  # type: ignore[arg-type]
    assert line.said == [GREETING, proof(b"node")]
    assert (nonces, line.rest) == ([32], b"more")
    to_node, to_leader = map(ChaCha20Poly1305, keys())
    assert sealed.send_key.encrypt(bytes(12), b"x", None) == to_leader.encrypt(bytes(12), b"x", None)
    assert sealed.receive_key.encrypt(bytes(12), b"x", None) == to_node.encrypt(bytes(12), b"x", None)


@pytest.mark.parametrize(
    ("heard", "why", "said"),
    [
        ((b"bench meeting 2\n" + OF_NODE, proof(b"node")), "another protocol", []),
        ((), "another protocol", []),
        ((GREETING[:-1],), "a connection that ends within a message", []),
        ((GREETING, proof(b"leader")), "a wrong proof", [OF_LEADER]),
        ((GREETING, proof(b"node", b"t" * 32)), "a wrong proof", [OF_LEADER]),
        ((GREETING, proof(b"node")[:-1]), "a connection that ends within a message", [OF_LEADER]),
        ((GREETING,), "a wrong proof", [OF_LEADER]),
    ],
)
def test_a_leader_tells_nothing_of_the_secret_to_who_does_not_know_it(
    heard: tuple[bytes, ...], why: str, said: list[bytes]
) -> None:
    line = Line(*heard)
    with pytest.raises(UntrustedPeer, match=why):
        meeting_proxy.prove_as_leader(line, SECRET)  # type: ignore[arg-type]
    assert line.said == said


@pytest.mark.parametrize("answer", [proof(b"node"), proof(b"leader", b"t" * 32), b""])
def test_a_node_does_not_trust_a_leader_without_the_secret(answer: bytes) -> None:
    with pytest.raises(UntrustedPeer, match="a wrong proof"):
        meeting_proxy.prove_as_node(Line(OF_LEADER, answer), SECRET)  # type: ignore[arg-type]


# --- frames ---------------------------------------------------------------------------------------------

KEY = ChaCha20Poly1305(b"k" * 32)


def frame(number: int, data: bytes) -> bytes:
    sealed = KEY.encrypt(number.to_bytes(12, "big"), data, None)
    return struct.pack(">I", len(sealed)) + sealed


def test_each_frame_has_its_length_and_its_number() -> None:
    line = Line()
    sealed = SealedLine(line, KEY, KEY)  # type: ignore[arg-type]
    for data in (b"first", b"second", b"third"):
        sealed.send(data)
    assert line.said == [frame(0, b"first"), frame(1, b"second"), frame(2, b"third")]


def received(*heard: bytes) -> list[bytes]:
    sealed = SealedLine(Line(*heard, at_once=2**20), KEY, KEY)  # type: ignore[arg-type]
    return list(iter(sealed.receive, b""))


def test_frames_of_1_byte_to_64_kib_are_read_in_their_order() -> None:
    pieces = [b"a", bytes(2**16), b"b"]
    assert received(*(frame(number, data) for number, data in enumerate(pieces))) == pieces
    assert received() == []


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        (frame(0, b""), "impossible size"),
        (frame(0, bytes(2**16 + 1)), "impossible size"),
        (frame(1, b"a"), "changed"),
        (frame(0, b"a") + frame(0, b"a"), "changed"),
        (frame(0, b"a")[:3], "ends within a message"),
        (frame(0, b"a")[:-1], "ends within a message"),
    ],
)
def test_a_frame_in_another_form_is_refused(heard: bytes, why: str) -> None:
    with pytest.raises(UntrustedPeer, match=why):
        received(heard)


def test_a_frame_without_its_body_is_a_changed_one() -> None:
    with pytest.raises(UntrustedPeer, match="changed"):
        received(frame(0, b"a")[:4])


# --- passing on -----------------------------------------------------------------------------------------


class Pair:
    """pass_on between a process of this machine and another proxy, in a thread of its own."""

    def __init__(self) -> None:
        (self.process, plain), (self.other, line) = socket.socketpair(), socket.socketpair()
        self._ours = plain, line
        for each in (self.process, self.other):
            each.settimeout(PATIENCE_SECONDS)
        self.sealed = SealedLine(self.other, KEY, KEY)
        self.thread = threading.Thread(target=meeting_proxy.pass_on, args=(plain, SealedLine(line, KEY, KEY)))
        self.thread.start()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.process, self.other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.thread.join(PATIENCE_SECONDS)
        for each in (*self._ours, self.process, self.other):
            each.close()
        assert not self.thread.is_alive()


def test_bytes_are_passed_on_in_both_directions() -> None:
    with Pair() as pair:
        pair.process.sendall(b"out")
        assert pair.sealed.receive() == b"out"
        pair.sealed.send(b"in")
        assert pair.process.recv(10) == b"in"


def test_either_side_that_ends_ends_the_other() -> None:
    with Pair() as pair:
        pair.process.shutdown(socket.SHUT_WR)
        assert pair.sealed.receive() == b""
    with Pair() as pair:
        pair.other.shutdown(socket.SHUT_WR)
        assert pair.process.recv(10) == b""


def test_a_changed_frame_ends_both_sides_and_is_not_passed_on() -> None:
    with Pair() as pair:
        pair.other.sendall(frame(1, b"a"))
        assert pair.process.recv(10) == b""
        assert pair.sealed.receive() == b""


# --- who comes in -----------------------------------------------------------------------------------------


class Semaphore:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let connections be made and passed on without a network; return what was done, in its order."""
    done: list[Any] = []

    def create_connection(address: tuple[str, int], timeout: float | None = None) -> Line:
        done.append(("connect", address, timeout))
        line: Line = done[0] if isinstance(done[0], Line) else Line()
        return line

    monkeypatch.setattr(meeting_proxy.socket, "create_connection", create_connection)
    monkeypatch.setattr(
        meeting_proxy, "pass_on", lambda plain, sealed: done.append(("pass on", plain, sealed.line))
    )
    return done


def test_a_node_that_proved_itself_is_connected_with_the_store(connected: list[Any]) -> None:
    line, store, unproven = Line(GREETING, proof(b"node")), Line(), Semaphore()
    connected.append(store)
    meeting_proxy.admit(line, SECRET, 1234, unproven)  # type: ignore[arg-type]
    assert connected[1:] == [("connect", ("127.0.0.1", 1234), None), ("pass on", store, line)]
    assert (line.limits, unproven.released, line.is_over) == ([10.0, None], 1, True)


@pytest.mark.parametrize("error", [None, TimeoutError])
def test_a_stranger_is_not_connected_and_makes_room_for_another(
    connected: list[Any], monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    line, unproven = Line(b"GET / HTTP/1.1\r\n\r\n" + bytes(99)), Semaphore()
    if error:
        monkeypatch.setattr(line, "recv", lambda _: (_ for _ in ()).throw(error))
    meeting_proxy.admit(line, SECRET, 1234, unproven)  # type: ignore[arg-type]
    assert (connected, line.limits, unproven.released, line.is_over) == ([], [10.0], 1, True)


def test_a_store_that_is_gone_ends_the_connection(
    connected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(meeting_proxy.socket, "create_connection", refused)
    line, plain = Line(GREETING, proof(b"node")), Line()
    meeting_proxy.admit(line, SECRET, 1234, Semaphore())  # type: ignore[arg-type]
    meeting_proxy.dial(plain, SECRET, "10.0.0.1:29400")  # type: ignore[arg-type]
    assert line.is_over and plain.is_over and connected == []


def test_a_process_of_another_node_is_connected_with_the_leader(connected: list[Any]) -> None:
    leader, plain = Line(OF_LEADER, proof(b"leader")), Line()
    connected.append(leader)
    meeting_proxy.dial(plain, SECRET, "[fd00::1]:29400")  # type: ignore[arg-type]
    assert connected[1:] == [("connect", ("fd00::1", 29400), 10.0), ("pass on", plain, leader)]
    assert (leader.limits, plain.is_over, leader.is_over) == ([10.0, None], True, True)


def test_a_leader_without_the_secret_is_hung_up_on(connected: list[Any]) -> None:
    leader, plain = Line(OF_LEADER, bytes(32)), Line()
    connected.append(leader)
    meeting_proxy.dial(plain, SECRET, "10.0.0.1:29400")  # type: ignore[arg-type]
    assert len(connected) == 2 and plain.is_over and leader.is_over


# --- where a proxy listens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meet", "resolved", "is_ours", "address"),
    [
        ("gpu0:29400", "10.0.0.1", True, "10.0.0.1"),
        ("gpu0:29400", "10.0.0.1", False, ""),  # a router translates the address
        ("gpu0:29400", "127.0.1.1", True, ""),  # the leader's own /etc/hosts
        ("127.0.1.1:29400", "127.0.1.1", True, "127.0.1.1"),
        ("localhost:29400", "127.0.0.1", True, "127.0.0.1"),
        ("[fe80::1%eth0]:29400", "fe80::1%eth0", True, "fe80::1%eth0"),
        ("gpu0:29400", "::1", True, ""),
    ],
)
def test_a_proxy_listens_at_the_meetings_address_if_others_reach_it_there(
    monkeypatch: pytest.MonkeyPatch, meet: str, resolved: str, is_ours: bool, address: str
) -> None:
    bound: list[tuple[str, int]] = []

    class Probe(Line):
        def __init__(self, family: int, kind: int) -> None:
            assert (family, kind) == (socket.AF_INET, socket.SOCK_STREAM)

        def bind(self, target: tuple[str, int]) -> None:
            bound.append(target)
            if not is_ours:
                raise OSError("Cannot assign requested address")

    def found(host: str, port: int, type: int) -> list[Any]:
        assert (port, type) == (29400, socket.SOCK_STREAM)
        return [
            (socket.AF_INET, type, 6, "", (resolved, port)),
            (socket.AF_INET, type, 6, "", ("8.8.8.8", port)),
        ]

    monkeypatch.setattr(meeting_proxy.socket, "getaddrinfo", found)
    monkeypatch.setattr(meeting_proxy.socket, "socket", Probe)
    assert meeting_proxy.listening_address(meet) == address
    assert all(target == (resolved, 0) for target in bound)  # a free port: the meeting's may be taken


@pytest.mark.parametrize(
    ("address", "dual", "family", "given"),
    [
        ("10.0.0.1", True, socket.AF_INET, {}),
        ("fd00::1", True, socket.AF_INET6, {}),
        ("", True, socket.AF_INET6, {"dualstack_ipv6": True}),
        ("", False, socket.AF_INET, {"dualstack_ipv6": False}),
    ],
)
def test_a_proxy_listens_by_the_family_of_its_address_or_by_both(
    monkeypatch: pytest.MonkeyPatch, address: str, dual: bool, family: int, given: dict[str, bool]
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(meeting_proxy.socket, "has_dualstack_ipv6", lambda: dual)
    monkeypatch.setattr(
        meeting_proxy.socket, "create_server", lambda *words, **options: made.append((words, options))
    )
    meeting_proxy.listen(address, 29400)
    assert made == [(((address, 29400),), {"family": family, "backlog": 128, **given})]


def test_every_connection_is_answered_in_a_thread_and_sends_at_once() -> None:
    answered: list[int] = []
    came = threading.Semaphore(0)

    def answer(line: socket.socket) -> None:
        answered.append(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        line.close()
        came.release()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_until_closed, args=(listener, answer), daemon=True).start()
        for _ in range(2):
            with socket.create_connection(listener.getsockname()):
                assert came.acquire(timeout=PATIENCE_SECONDS)
        listener.shutdown(socket.SHUT_RDWR)
    assert len(answered) == 2 and all(answered)


def _until_closed(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):
        meeting_proxy.answer_connections(listener, answer)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let proxies be opened without a network or torch; return what was opened with what."""
    made = SimpleNamespace(servers=[], stores=[], threads=[], listened=[])

    class Server:
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 4321

        def detach(self) -> int:
            return 77

    def create_server(address: tuple[str, int], backlog: int) -> Server:
        made.servers.append((address, backlog))
        return Server()

    def store(*words: Any, **options: Any) -> str:
        made.stores.append((words, options))
        return "the store"

    class Thread:
        def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
            assert daemon and target is meeting_proxy.answer_connections
            self.args = args

        def start(self) -> None:
            made.threads.append(self.args)

    monkeypatch.setattr(meeting_proxy.socket, "create_server", create_server)
    monkeypatch.setattr(meeting_proxy, "listening_address", lambda meet: f"address of {meet}")
    monkeypatch.setattr(meeting_proxy, "listen", lambda *words: made.listened.append(words) or "a listener")
    monkeypatch.setattr(torch_inside, "store_on_socket", store)
    monkeypatch.setattr(meeting_proxy.threading, "Thread", Thread)
    return made


def test_the_leaders_store_is_on_its_loopback_behind_the_proxy(opened: SimpleNamespace) -> None:
    assert meeting_proxy.open_for_nodes("10.0.0.1:29400", SECRET) == (4321, "the store")
    assert opened.servers == [(("127.0.0.1", 0), 128)]
    assert opened.listened == [("address of 10.0.0.1:29400", 29400)]
    ((words, options),) = opened.stores
    assert words == ("127.0.0.1", 4321, None)
    assert options["listen_fd"] == 77 and options["timeout"].total_seconds() == 7 * 24 * 3600


def test_at_most_64_connections_are_unproven_at_a_time(
    opened: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[Any] = []
    monkeypatch.setattr(meeting_proxy, "admit", lambda *given: admitted.append(given))
    meeting_proxy.open_for_nodes("10.0.0.1:29400", SECRET)
    ((listener, answer),) = opened.threads
    lines = [Line() for _ in range(66)]
    for line in lines[:65]:
        answer(line)
    assert listener == "a listener"
    assert [given[:3] for given in admitted] == [(line, SECRET, 4321) for line in lines[:64]]
    assert [line.is_over for line in lines[:65]] == [False] * 64 + [True]
    admitted[0][3].release()
    answer(lines[65])
    assert admitted[-1][0] is lines[65]


def test_another_nodes_door_is_on_its_loopback_and_leads_to_the_leader(
    opened: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[Any] = []
    monkeypatch.setattr(meeting_proxy, "dial", lambda *given: dialled.append(given))
    port, listener = meeting_proxy.open_to_leader("10.0.0.1:29400", SECRET)
    ((kept, answer),) = opened.threads
    assert (port, kept is listener, opened.servers) == (4321, True, [(("127.0.0.1", 0), 128)])
    answer("a line")
    assert dialled == [("a line", SECRET, "10.0.0.1:29400")]


# --- the process of a door --------------------------------------------------------------------------------


def process(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], *rest: bytes) -> tuple[int, list[Any]]:
    """Run a door's process, whose doors open at the port 4321 or where `meet` says; return its events."""
    events: list[Any] = []

    def opens(side: str) -> Callable[..., tuple[int, object]]:
        def open_one(meet: str, secret: bytes) -> tuple[int, object]:
            events.append((side, meet, secret))
            if meet == "taken":
                raise OSError("Address already in use")
            return 4321, "kept"

        return open_one

    stdin = io.BytesIO(b"\n".join([json.dumps(asked).encode(), *rest]))
    monkeypatch.setattr(meeting_proxy, "open_for_nodes", opens("leader"))
    monkeypatch.setattr(meeting_proxy, "open_to_leader", opens("node"))
    monkeypatch.setattr(meeting_proxy.signal, "signal", lambda *given: events.append(given))
    monkeypatch.setattr(meeting_proxy.sys, "stdin", SimpleNamespace(buffer=stdin))
    code = meeting_proxy.main()
    events.append(("left", stdin.read()))
    return code, events


@pytest.mark.parametrize(("leads", "side"), [(True, "leader"), (False, "node")])
def test_a_door_answers_with_its_port_and_ends_with_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leads: bool, side: str
) -> None:
    asked = {"leads": leads, "meet": "gpu0:1", "secret": SECRET.hex()}
    code, events = process(monkeypatch, asked, b"until the end")
    assert code == 0
    assert events == [(signal.SIGINT, signal.SIG_IGN), (side, "gpu0:1", SECRET), ("left", b"")]
    assert json.loads(capsys.readouterr().out) == {"port": 4321}


def test_a_door_that_cannot_open_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, events = process(monkeypatch, {"leads": True, "meet": "taken", "secret": "00"}, b"more")
    assert (code, events[-1]) == (1, ("left", b"more"))
    assert json.loads(capsys.readouterr().out) == {"why": "Address already in use"}


class Process(SimpleNamespace):
    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None: ...


def opens(monkeypatch: pytest.MonkeyPatch, said: bytes, node: int = 0) -> tuple[Process, Nodes | None, Any]:
    """Open a door whose process says this; return the process, the nodes, and the error if it failed."""
    asked, killed = io.BytesIO(), list[bool]()
    made = Process(
        stdin=asked, stdout=io.BytesIO(said), kill=lambda: killed.append(True), wait=lambda: -9,
        killed=killed, command=[],
    )  # fmt: skip

    def start(command: list[str], **pipes: int) -> Process:
        assert pipes == {"stdin": -1, "stdout": -1}
        made.command = command
        return made

    monkeypatch.setattr(meeting_proxy.subprocess, "Popen", start)
    try:
        with meeting_proxy.open_proxy(Nodes(2, node, "gpu0:29400", "abc"), SECRET) as nodes:
            assert killed == []
            return made, nodes, None
    except EnvironmentCannot as error:
        return made, None, error


@pytest.mark.parametrize(("node", "leads"), [(0, True), (1, False)])
def test_the_secret_reaches_a_door_by_its_stdin(
    monkeypatch: pytest.MonkeyPatch, node: int, leads: bool
) -> None:
    made, nodes, _ = opens(monkeypatch, b'{"port": 4321}\n', node)
    assert made.command == [sys.executable, "-m", "bench.runner.processes.meeting_proxy"]
    assert made.stdin.getvalue().endswith(b"\n")
    assert json.loads(made.stdin.getvalue()) == {"leads": leads, "meet": "gpu0:29400", "secret": SECRET.hex()}
    assert nodes == Nodes(2, node, "gpu0:29400", "abc", "127.0.0.1:4321")
    assert made.killed == [True]


@pytest.mark.parametrize(
    ("said", "why"), [(b'{"why": "Address in use"}\n', "Address in use"), (b"", "its process ended with -9")]
)
def test_a_door_that_does_not_open_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, said: bytes, why: str
) -> None:
    made, _, error = opens(monkeypatch, said)
    assert error.message == f"the nodes cannot meet at gpu0:29400: {why}"
    assert error.advice == "give another port of node 0 in --meet, on all nodes"
    assert made.killed == [True]

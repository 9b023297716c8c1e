"""The proxy to the meeting of nodes that train together: only nodes that know the run's secret come in.

torchrun and torch.distributed meet in a store that asks nobody who they are, and torchrun unpickles what it
reads there. So the store listens on the leader's loopback interface alone. The leader's proxy listens at the
meeting's address, and another node's proxy on its own loopback interface. The proxies prove to each other
that they know the secret, and encrypt and authenticate what they pass on. A proxy is a separate process,
which ends with the run that started it. Only `main` on the leader imports torch.
"""

from __future__ import annotations

import hmac
import json
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import ip_address

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bench.base.errors import EnvironmentCannot
from bench.runner.processes.jobs import Nodes, host_and_port

LOOPBACK = "127.0.0.1"
GREETING = b"bench meeting 1\n"
NONCE_BYTES = PROOF_BYTES = KEY_BYTES = 32
PIECE_BYTES = 1 << 16  # of plain data in one frame
TAG_BYTES = 16
HANDSHAKE_SECONDS = 10.0
MOST_UNPROVEN = 64  # connections that have not proved themselves yet; further ones are closed
DIAL_SECONDS = 10.0
BACKLOG = 128
STORE_PATIENCE = timedelta(days=7)  # longer than any run


class UntrustedPeer(Exception):
    """The other side does not know the secret, or somebody changed what it sent."""


@dataclass(slots=True)
class SealedLine:
    """A connection between two proxies, encrypted and authenticated in both directions.

    Each direction has a key of its own, and the number of the frame as nonce.
    """

    line: socket.socket
    send_key: ChaCha20Poly1305
    receive_key: ChaCha20Poly1305
    sent: int = 0
    received: int = 0

    def send(self, data: bytes) -> None:
        """Send up to PIECE_BYTES as one encrypted frame."""
        frame = self.send_key.encrypt(self.sent.to_bytes(12, "big"), data, None)
        self.sent += 1
        self.line.sendall(struct.pack(">I", len(frame)) + frame)

    def receive(self) -> bytes:
        """Return the next piece; empty at the end of the connection. UntrustedPeer for a changed piece."""
        head = _exactly(self.line, 4)
        if not head:
            return b""
        (size,) = struct.unpack(">I", head)
        if not TAG_BYTES < size <= PIECE_BYTES + TAG_BYTES:
            raise UntrustedPeer("a frame of impossible size")
        frame = _exactly(self.line, size)
        try:
            data = self.receive_key.decrypt(self.received.to_bytes(12, "big"), frame, None)
        except InvalidTag:
            raise UntrustedPeer("a frame that was changed") from None
        self.received += 1
        return data


def _exactly(line: socket.socket, size: int) -> bytes:
    """Read `size` bytes; return nothing if the connection ends before the first of them."""
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            if data:
                raise UntrustedPeer("a connection that ends within a message")
            return b""
        data += more
    return data


def prove_as_leader(line: socket.socket, secret: bytes) -> SealedLine:
    """Let another node's proxy prove that it knows the secret, and then prove it to that proxy."""
    greeting = _exactly(line, len(GREETING) + NONCE_BYTES)
    if not greeting.startswith(GREETING):
        raise UntrustedPeer("another protocol")
    own = secrets.token_bytes(NONCE_BYTES)
    talk = greeting + own
    # The other side proves itself first: who does not know the secret gets nothing to guess it from.
    line.sendall(own)
    if not hmac.compare_digest(_exactly(line, PROOF_BYTES), _proof(secret, b"node", talk)):
        raise UntrustedPeer("a wrong proof")
    line.sendall(_proof(secret, b"leader", talk))
    to_node, to_leader = _keys(secret, talk)
    return SealedLine(line, send_key=to_node, receive_key=to_leader)


def prove_as_node(line: socket.socket, secret: bytes) -> SealedLine:
    """Prove to the leader's proxy that this node knows the secret, and let it prove it too."""
    greeting = GREETING + secrets.token_bytes(NONCE_BYTES)
    line.sendall(greeting)
    talk = greeting + _exactly(line, NONCE_BYTES)
    line.sendall(_proof(secret, b"node", talk))
    if not hmac.compare_digest(_exactly(line, PROOF_BYTES), _proof(secret, b"leader", talk)):
        raise UntrustedPeer("a wrong proof")
    to_node, to_leader = _keys(secret, talk)
    return SealedLine(line, send_key=to_leader, receive_key=to_node)


def _proof(secret: bytes, side: bytes, talk: bytes) -> bytes:
    return hmac.digest(secret, b"bench proof of the " + side + b"\n" + talk, "sha256")


def _keys(secret: bytes, talk: bytes) -> tuple[ChaCha20Poly1305, ChaCha20Poly1305]:
    """Derive the keys for both directions, to the node and to the leader."""
    made = HKDF(SHA256(), 2 * KEY_BYTES, salt=talk, info=b"bench meeting").derive(secret)
    return ChaCha20Poly1305(made[:KEY_BYTES]), ChaCha20Poly1305(made[KEY_BYTES:])


def pass_on(plain: socket.socket, sealed: SealedLine) -> None:
    """Copy both ways between a connection on this machine and another proxy, until either side ends."""

    def outwards() -> None:
        with suppress(OSError):
            while data := plain.recv(PIECE_BYTES):
                sealed.send(data)
        _hang_up(plain, sealed.line)

    threading.Thread(target=outwards, daemon=True).start()
    with suppress(OSError, UntrustedPeer):
        while data := sealed.receive():
            plain.sendall(data)
    _hang_up(plain, sealed.line)


def _hang_up(*lines: socket.socket) -> None:
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def admit(line: socket.socket, secret: bytes, store_port: int, unproven: threading.Semaphore) -> None:
    """Connect another node's proxy to the store of this machine, once it has proved itself.

    The whole proof has HANDSHAKE_SECONDS: who sends a byte now and then would keep the place of a node.
    """
    with line:
        too_late = threading.Timer(HANDSHAKE_SECONDS, _hang_up, (line,))
        too_late.daemon = True
        too_late.start()
        try:
            line.settimeout(HANDSHAKE_SECONDS)
            sealed = prove_as_leader(line, secret)
            line.settimeout(None)
        except (OSError, UntrustedPeer):
            return
        finally:
            too_late.cancel()
            unproven.release()
        with suppress(OSError), socket.create_connection((LOOPBACK, store_port)) as plain:
            pass_on(plain, sealed)


def dial(plain: socket.socket, secret: bytes, meet: str) -> None:
    """Connect a process of this machine to the leader's store; hang up if the leader cannot be reached."""
    leader = host_and_port(meet)
    with (
        plain,
        suppress(OSError, UntrustedPeer),
        socket.create_connection(leader, timeout=DIAL_SECONDS) as line,
    ):
        line.settimeout(HANDSHAKE_SECONDS)
        sealed = prove_as_node(line, secret)
        line.settimeout(None)
        pass_on(plain, sealed)


def listening_address(meet: str) -> str:
    """Return the address at which the leader's proxy listens: the meeting's own if this machine has it.

    It is empty, for every interface, if other nodes reach this machine by another address: the name means
    loopback on the leader itself, or a router translates the address. The secret is required there too.
    """
    host, port = host_and_port(meet)
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    address = str(target[0])
    if ip_address(address.partition("%")[0]).is_loopback and host not in ("localhost", address):
        return ""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return ""
    return address


def answer_connections(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Answer every connection in a separate thread, until the process ends."""
    while True:
        line, _ = listener.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(line,), daemon=True).start()


def open_for_nodes(meet: str, secret: bytes) -> tuple[int, object]:
    """Open the leader's proxy; return the port on this machine of the store behind it, and the store."""
    from bench.training.vendor import torch_inside

    listener = listen(listening_address(meet), host_and_port(meet)[1])
    behind = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
    port = int(behind.getsockname()[1])
    store = torch_inside.store_on_socket(
        LOOPBACK, port, None, listen_fd=behind.detach(), timeout=STORE_PATIENCE
    )
    unproven = threading.Semaphore(MOST_UNPROVEN)

    def answer(line: socket.socket) -> None:
        if unproven.acquire(blocking=False):
            admit(line, secret, port, unproven)
        else:
            line.close()

    threading.Thread(target=answer_connections, args=(listener, answer), daemon=True).start()
    return port, store


def open_to_leader(meet: str, secret: bytes) -> tuple[int, object]:
    """Open another node's proxy; return its port on this machine, and the listening socket."""
    local = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
    threading.Thread(
        target=answer_connections, args=(local, lambda plain: dial(plain, secret, meet)), daemon=True
    ).start()
    return int(local.getsockname()[1]), local


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address; an empty one means every interface."""
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def main() -> int:
    """Open the proxy that the first line of stdin describes, answer with its port, and end with stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides how it ends, and needs its proxy for that
    asked = json.loads(sys.stdin.buffer.readline())
    opened = open_for_nodes if asked["leads"] else open_to_leader
    try:
        port, _kept = opened(asked["meet"], bytes.fromhex(asked["secret"]))
    except OSError as error:  # the port is taken, or the name is unknown
        print(json.dumps({"why": str(error)}), flush=True)
        return 1
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.buffer.read()  # ends when the run does
    return 0


@contextmanager
def open_proxy(nodes: Nodes, secret: bytes) -> Iterator[Nodes]:
    """Open this node's proxy; yield the nodes with the address of the meeting's store on this machine."""
    asked = {"leads": nodes.node == 0, "meet": nodes.meet, "secret": secret.hex()}
    command = [sys.executable, "-m", "bench.runner.processes.meeting_proxy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or b"{}")
            if "port" not in answer:
                why = answer.get("why", f"its process ended with {process.wait()}")
                raise EnvironmentCannot(
                    f"the nodes cannot meet at {nodes.meet}: {why}",
                    advice="give another port of node 0 in --meet, on all nodes",
                )
            yield replace(nodes, store=f"{LOOPBACK}:{answer['port']}")
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())

"""A neighbour in the network of nodes that train together scans them, and speaks to every port in turn."""

from __future__ import annotations

import ctypes
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from bench.runner.processes.meeting_proxy import GREETING
from tests.e2e.network import Network
from tests.e2e.services import require

CLONE_NEWNET = 0x40000000
LISTENING = "0A"
PATIENCE_SECONDS = 0.5  # for an answer
PAUSE_SECONDS = 0.2  # between two rounds
# torch's TCPStore: "validate" with its magic number, then "how many keys have you?".
ASKS_THE_STORE = b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x07"
MESSAGES: Mapping[str, bytes] = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.0\r\n\r\n",
    "torch's store": ASKS_THE_STORE,
    "the proxy, without the secret": GREETING + bytes(64),
    "gloo, as a pair that nobody awaits": struct.pack("<Q", 2**40),
    "NCCL's bootstrap": struct.pack("<Qi", 0x564AB9F2FC4B9D6C, 1) + bytes(64),
}


class Answer(NamedTuple):
    """The bytes that came back from a port."""

    port: int
    message: str
    data: bytes

    @classmethod
    def of(cls, host: str, port: int, name: str, message: bytes) -> Answer:
        return cls(port, name, answer_of(host, port, message))


@dataclass
class Neighbour:
    """Speaks to every port at which the nodes listen towards the network, again and again."""

    nodes: Mapping[int, str]  # a process of each node, with the address of the node
    answers: list[Answer] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def speak(self, namespace: str) -> None:
        """Move the calling thread, and no other, into the neighbour's namespace, and speak until `stop`."""
        with Path(f"/run/netns/{namespace}").open() as place:
            assert ctypes.CDLL(None).setns(place.fileno(), CLONE_NEWNET) == 0
        # A port of gloo may be open for less time than the silence of another port takes. Threads that are
        # started here are in the neighbour's namespace too.
        with ThreadPoolExecutor(len(MESSAGES)) as at_once:
            while not self._over.wait(PAUSE_SECONDS):
                ports = {one for pid, address in self.nodes.items() for one in listeners(pid, address)}
                asked = product(ports, MESSAGES.items())
                self.answers += at_once.map(lambda each: Answer.of(*each[0], *each[1]), asked)

    def stop(self) -> None:
        self._over.set()

    @property
    def ports(self) -> set[int]:
        return {answer.port for answer in self.answers}


def answer_of(host: str, port: int, message: bytes) -> bytes:
    """Send a message to a port; return all that comes back until it is silent or closed."""
    found = b""
    try:
        with socket.create_connection((host, port), PATIENCE_SECONDS) as line:
            line.sendall(message)
            while more := line.recv(4096):
                found += more
    except OSError:  # closed meanwhile, or silent
        pass
    return found


def listeners(pid: int, address: str) -> Iterator[tuple[str, int]]:
    """Yield where a process's namespace listens, except on loopback; `address` is that of its node.

    A socket of IPv6 that listens on every address takes connections of IPv4 too.
    """
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:  # it has ended
            return
        for line in lines:
            local, state = line.split()[1], line.split()[3]
            host, port = local.split(":")
            listens_at = _address(host)
            if state == LISTENING and not listens_at.is_loopback:
                everywhere = listens_at.is_unspecified or listens_at.version == 6
                yield address if everywhere else str(listens_at), int(port, 16)


def _address(text: str) -> IPv4Address | IPv6Address:
    """Return an address of /proc/net/tcp or tcp6: words of four bytes, each with its last byte first."""
    words = struct.iter_unpack("<I", bytes.fromhex(text))
    found = ip_address(b"".join(struct.pack(">I", word) for (word,) in words))
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def scanned(net: Network, neighbour: int, node: int, ports: str) -> dict[int, str]:
    """Scan a node with nmap from the neighbour's namespace; return the program at each open port, if told."""
    require("nmap")
    words = ["nmap", "-n", "-Pn", "-sS", "-sV", "-p", ports, "-oX", "-", net.address(node)]
    done = subprocess.run(net.inside(neighbour, *words), check=True, capture_output=True, text=True)
    found = {}
    for port in ElementTree.fromstring(done.stdout).iter("port"):
        state, service = port.find("state"), port.find("service")
        if state is not None and state.get("state") == "open":
            found[int(port.attrib["portid"])] = "" if service is None else service.get("product", "")
    return found

"""Nodes in network namespaces, joined by a switch: real TCP over links that a test slows, breaks or cuts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.services import require, require_root

MEGABIT = 40  # a second, of each link: little enough that a busy machine's cores are never the limit


@dataclass(frozen=True)
class Network:
    """Namespaces NAME-0, NAME-1, ... with the addresses 10.77.0.1, 10.77.0.2, ..."""

    name: str
    count: int

    def namespace(self, node: int) -> str:
        return f"{self.name}-{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def inside(self, node: int, *command: str) -> list[str]:
        """Return the command that runs another one inside of a node's namespace."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    @property
    def at_switch(self) -> str:
        """The address of the switch, for a machine that is not one of the nodes."""
        return "10.77.0.254"

    def inside_switch(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.name}-switch", *command]

    def slow(self, node: int, megabit: float) -> None:
        """Limit what leaves a node and what reaches it."""
        self._shape(self.inside(node), "eth0", megabit)
        self._shape(self.inside_switch(), f"port{node}", megabit)

    def lose_packets(self, node: int, share: float) -> None:
        """Drop so large a share of the packets that reach a node."""
        drop = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
        run(*self.inside(node, "iptables", "-A", "INPUT", "-i", "eth0", *drop))

    def slow_pair(self, a: int, b: int, packets_per_second: int) -> None:
        """Drop what two nodes send each other above a rate; both are fast with all others."""
        for node, other in ((a, b), (b, a)):
            limit = ["-m", "hashlimit", "--hashlimit-name", f"pair{other}"]
            limit += ["--hashlimit-above", f"{packets_per_second}/second", "-j", "DROP"]
            run(*self.inside(node, "iptables", "-A", "INPUT", "-s", self.address(other), *limit))

    def cut(self, node: int) -> None:
        run(*self.inside(node, "ip", "link", "set", "eth0", "down"))

    def join(self, node: int) -> None:
        """Undo a cut."""
        run(*self.inside(node, "ip", "link", "set", "eth0", "up"))

    def _shape(self, inside: list[str], device: str, megabit: float) -> None:
        limit = ["tbf", "rate", f"{megabit}mbit", "burst", "32kb", "latency", "50ms"]
        run(*inside, "tc", "qdisc", "replace", "dev", device, "root", *limit)


@contextmanager
def network(count: int, megabit: float = MEGABIT) -> Iterator[Network]:
    """Make the namespaces of `count` nodes and of their switch, with links of this rate."""
    require_root("network namespaces")
    require("ip", "tc", "iptables")
    made = Network(f"bench{os.getpid()}", count)
    switch = f"{made.name}-switch"
    try:
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "address", "add", f"{made.at_switch}/24", "dev", "bridge")
        for device in ("lo", "bridge"):
            run("ip", "-n", switch, "link", "set", device, "up")
        for node in range(count):
            own = made.namespace(node)
            run("ip", "netns", "add", own)
            ends = ["link", "add", "eth0", "netns", own, "type", "veth", "peer", f"port{node}"]
            run("ip", "-n", switch, *ends)
            run("ip", "-n", switch, "link", "set", f"port{node}", "master", "bridge", "up")
            run("ip", "-n", own, "address", "add", f"{made.address(node)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", own, "link", "set", device, "up")
            made.slow(node, megabit)
        yield made
    finally:
        for name in (*map(made.namespace, range(count)), switch):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)

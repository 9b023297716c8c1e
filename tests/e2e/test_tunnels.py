"""Two rented nodes that train together through a tunnel, typed as docs/nodes.md prints it.

The network between them carries only the tunnel's packets: all others are dropped. A run that ends well has
therefore had its meeting and all of gloo's connections inside the tunnel.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documented_commands import printed
from tests.e2e.network import Network, network, run
from tests.e2e.reader import Reader
from tests.e2e.services import require
from tests.patience import PATIENCE_SECONDS
from tests.runner.test_nodes import both, results, said
from tests.warm import ROOT

pytestmark = pytest.mark.e2e

COUNT = 2
LEADER = "10.0.0.1"  # inside of the tunnel, as the page prints it
RENTED = "203.0.113.1"  # the leader's public address, as the page prints it
MEGABIT = 1000
TIMED_OUT = 124  # the exit code of timeout(1)
PERMIT = "PermitTunnel point-to-point"


@dataclass(frozen=True)
class RentedNode:
    """A node in a network namespace, on which a reader types; it has its own /run/wireguard."""

    net: Network
    number: int
    folder: Path

    def type(self, line: str, code: int = 0, **stands_for: str) -> str:
        """Run a line on the node; each placeholder in it is replaced by the text of its name."""
        reader = Reader(self.folder, stands_for={RENTED: self.net.address(0), **stands_for})
        bound = "mount --bind wireguard /run/wireguard && mount --bind ssh_config /etc/ssh/ssh_config"
        words = self.net.inside(self.number, "bash", "-c", f"{bound} && {{ {reader.filled(line)}; }}")
        return reader.type(shlex.join(words), code)


@contextmanager
def rented(folder: Path, protocol: str, port: int) -> Iterator[tuple[RentedNode, RentedNode]]:
    """Make two nodes that reach each other at one port of one protocol; end all that was started on them."""
    Path("/run/wireguard").mkdir(exist_ok=True)
    with network(COUNT, megabit=MEGABIT) as net:
        nodes = [RentedNode(net, number, folder / f"rented-{number}") for number in range(COUNT)]
        for node in nodes:
            (node.folder / "wireguard").mkdir(parents=True)
            (node.folder / "ssh_config").touch()
            arriving = ["iptables", "-A", "INPUT", "-i", "eth0"]
            for end in ("--dport", "--sport"):
                accepted = ["-p", protocol, end, str(port), "-j", "ACCEPT"]
                run(*net.inside(node.number, *arriving, *accepted))
            run(*net.inside(node.number, *arriving, "-j", "DROP"))
        try:
            yield nodes[0], nodes[1]
        finally:
            for node in nodes:
                end_all(net.namespace(node.number))


def end_all(namespace: str) -> None:
    """End the processes in a network namespace."""
    command = ["ip", "netns", "pids", namespace]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for pid in found.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def require_a_common_run(leader: RentedNode, folder: Path) -> None:
    """Run both nodes, which meet at the leader's address inside of the tunnel, until each ends well."""
    with both(folder, inside=leader.net, leader=LEADER, methods=["naive"]) as nodes:
        assert [node.wait(PATIENCE_SECONDS) for node in nodes] == [0, 0], said(folder)
    found, environment = results(folder)
    assert [(trial["outcome"], trial["gpus"]) for trial in found["trials"]] == [("measured", COUNT)]
    assert len(environment["nodes"]) == COUNT


def test_what_is_not_of_the_tunnel_does_not_pass(tmp_path: Path) -> None:
    """The other tests depend on this: a port of the leader is reached by the leader, and by nobody else."""
    connect = "timeout 5 bash -c 'until (>/dev/tcp/203.0.113.1/29400) 2>/dev/null; do sleep 0.1; done'"
    with rented(tmp_path, "udp", 51820) as (leader, other):
        listening = [*leader.net.inside(0), sys.executable, "-m", "http.server", "29400"]
        subprocess.Popen(listening, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        leader.type(connect)
        other.type(connect, TIMED_OUT)


def test_two_nodes_train_together_through_wireguard(tmp_path: Path) -> None:
    require("wg", "wireguard-go")
    make_key = printed("wg genkey > wg.key && chmod 600 wg.key && wg pubkey < wg.key")
    add = printed("ip link add wg0 type wireguard || wireguard-go wg0")
    start = printed("ip address add 10.0.0.1/24 dev wg0 && ip link set wg0 up")
    of_leader = printed(
        "wg set wg0 private-key wg.key listen-port 51820 peer PUBLIC_KEY_OF_NODE_1 allowed-ips 10.0.0.2/32"
    )
    of_other = printed(
        "wg set wg0 private-key wg.key peer PUBLIC_KEY_OF_NODE_0 allowed-ips 10.0.0.1/32"
        " endpoint 203.0.113.1:51820 persistent-keepalive 25"
    )
    with rented(tmp_path, "udp", 51820) as (leader, other):
        keys = [node.type(make_key).split()[-1] for node in (leader, other)]
        for node in (leader, other):
            node.type(add)
        leader.type(of_leader, PUBLIC_KEY_OF_NODE_1=keys[1])
        other.type(of_other, PUBLIC_KEY_OF_NODE_0=keys[0])
        leader.type(start)
        other.type(start.replace("10.0.0.1", "10.0.0.2"))
        require_a_common_run(leader, tmp_path)
        assert "latest handshake" in other.type(printed("wg show"))


def test_two_nodes_train_together_through_ssh(tmp_path: Path) -> None:
    require("sshd", "ssh-keygen")
    assert f"`{PERMIT}`" in (ROOT / "docs/nodes.md").read_text()
    connect = printed("ssh -f -N -o ExitOnForwardFailure=yes -w 0:0 root@203.0.113.1")
    start = printed("ip address add 10.0.0.1 peer 10.0.0.2 dev tun0 && ip link set tun0 up")
    of_other = printed("ip address add 10.0.0.2 peer 10.0.0.1 dev tun0 && ip link set tun0 up")
    with rented(tmp_path, "tcp", 22) as (leader, other):
        start_sshd(leader)
        (other.folder / "ssh_config").write_text(
            f"Host *\n  IdentityFile {leader.folder}/key\n  UserKnownHostsFile {other.folder}/known\n"
            "  StrictHostKeyChecking accept-new\n"
        )
        other.type(connect)
        leader.type(start)
        other.type(of_other)
        require_a_common_run(leader, tmp_path)


def start_sshd(node: RentedNode) -> None:
    """Start an SSH server on the node that takes the node's own key, and wait until it listens."""
    Path("/run/sshd").mkdir(exist_ok=True)
    node.type("ssh-keygen -q -t ed25519 -N '' -f key && cp key.pub authorized")
    (node.folder / "sshd_config").write_text(
        f"HostKey {node.folder}/key\nAuthorizedKeysFile {node.folder}/authorized\nPidFile none\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n{PERMIT}\n"
    )
    node.type(f"/usr/sbin/sshd -f {node.folder}/sshd_config")  # returns when it listens

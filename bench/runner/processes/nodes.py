"""Several nodes: each runs the same command, one of them leads, torchrun brings their processes together.

For every job each node starts torchrun once, under the job's number: a meeting that breaks up must not
close the next one. The leader's hosts the meeting, and its processes bring the job; the others do their
part and join the next one, until the leader says that it was the last. Who misses a meeting tries the
numbers that follow.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base.errors import EnvironmentCannot
from bench.base.linux_processes import oom_kills
from bench.base.machine_share import cores
from bench.runner.processes.ranks import written_reasons
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch.distributed import Store

Emit = Callable[[dict[str, Any]], None]
# What the members of a node are told, beside what torchrun sets.
JOB, DEVICE, FOLDER, EVENTS = "BENCH_JOB", "BENCH_DEVICE", "BENCH_FOLDER", "BENCH_EVENTS"
NODE, MEET, ADDRESS = "BENCH_NODE", "BENCH_MEET", "BENCH_ADDRESS"
THREADS, OWN_THREADS = "OMP_NUM_THREADS", "BENCH_OWN_THREADS"  # the second: that the first is no user's
BEGUN = "begun"  # a file in their folder, once one of them is there
FAILED = "bench/failed"  # in the meeting's store: why the first member failed, for all others
LAST = {"kind": "last"}
LEADER_WAITS, OTHER_WAITS = 600, 20  # seconds, for the others to come to a meeting
# torchrun holds a node's signs of life against another's clock: one that is 15 seconds behind was dead to it.
SIGNS_MISSED = 720  # of one in five seconds: an hour; who is really gone is noticed otherwise
STORE_PATIENCE = timedelta(minutes=5)
_SIOCGIFADDR = 0x8915  # of Linux: an interface's address
GLOO = "GLOO_SOCKET_IFNAME"  # left to itself it asks for the host's own name, often 127.0.1.1


@dataclass(frozen=True, slots=True)
class Nodes:
    """This node's place among several."""

    count: int
    node: int  # 0 leads
    meet: str  # HOST:PORT on the leader, which all nodes reach
    identity: str  # of the run: the manifest's digest, which all nodes have


def torchrun(nodes: Nodes, number: int, per_node: int, address: str | None = None) -> list[str]:
    """The command of one node for job `number`; `address` is where the others reach this one."""
    leads = nodes.node == 0
    rendezvous = torch_inside.rendezvous_options(
        is_host=leads, join_seconds=LEADER_WAITS if leads else OTHER_WAITS, missed_signs=SIGNS_MISSED
    )
    return [
        sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={nodes.count}", f"--nproc-per-node={per_node}", "--max-restarts=0",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes.meet}", f"--rdzv-id={nodes.identity}-{number}",
        f"--rdzv-conf={rendezvous}",
        *([f"--local-addr={address}"] if address else []),
        "-m", "bench.runner.processes.node_member",
    ]  # fmt: skip


def threads(environment: Mapping[str, str], per_node: int) -> dict[str, str]:
    """As on one node: torchrun gives each of several processes one, with which Adam on the host crawls."""
    if per_node == 1 or THREADS in environment:
        return {}
    return {THREADS: str(cores()), OWN_THREADS: "yes"}


def _parts(meet: str) -> tuple[str, int]:
    """Host and port; an IPv6 address stands in brackets."""
    host, _, port = meet.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(meet: str) -> str | None:
    """This node's address on its way to the meeting: rented nodes do not know each other's names."""
    host, port = _parts(meet)
    with suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, there = found[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(there)  # sends nothing: the kernel chooses the way
            return str(way.getsockname()[0])
    return None


def require_free(meet: str) -> None:
    """The port of the meeting, on the leader: torchrun would say it in its log alone, after all have come."""
    _, port = _parts(meet)
    try:
        socket.create_server(("", port)).close()
    except (OSError, OverflowError) as error:
        raise EnvironmentCannot(
            f"the nodes cannot meet at port {port} of this machine: {error}",
            advice="another port in --meet, on all of them",
        ) from None


def interface_among(address: str, others: Sequence[str]) -> str | None:
    """The interface by which the others reach this node; None where all are one machine.

    The leader may take the name of the meeting for 127.0.1.1: then the one on its way to another node.
    """
    for own in (address, *(own_address(f"{other}:1") for other in others)):
        if own and not ip_address(own).is_loopback and (found := interface_of(own)):
            return found
    return None


def interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        lines = map(str.split, Path("/proc/net/if_inet6").read_text().splitlines())
        return next((line[-1] for line in lines if line[0] == packed), None)
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            told = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    return None


def meeting(meet: str, run: str, patience: timedelta = STORE_PATIENCE) -> Store:
    """The store at which the nodes meet: in the leader's torchrun, which no member's end closes.

    What stands in it is of one job: who is late finds that of the next.
    """
    from torch.distributed import PrefixStore, TCPStore

    host, port = _parts(meet)
    return PrefixStore(run, TCPStore(host, port, is_master=False, timeout=patience))


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for what lies there that fits into a socket's address: 107 characters, and homes are deep."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def across_nodes(job: dict[str, Any], emit: Emit, folder: Path) -> int:
    """Runs this node's part of a job; the leader's ends with the job's own final event."""
    nodes = Nodes(**job["nodes"])
    leads = nodes.node == 0
    events, address = folder / "events", own_address(nodes.meet)
    environment = os.environ | {DEVICE: job["device"], FOLDER: str(folder), EVENTS: str(events)}
    environment |= {NODE: str(nodes.node), MEET: nodes.meet} | torch_inside.SHARED_STORE
    per_node = job["gpus"] // nodes.count
    environment |= threads(os.environ, per_node)
    kills_before = oom_kills()
    environment |= {ADDRESS: address or ""}
    if leads:
        environment[JOB] = json.dumps(job)
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(events) as path:
            listener.bind(path)
        listener.listen()
        relay = threading.Thread(target=_relay, args=(listener, emit), daemon=True)
        relay.start()
        # The leader is where all meet, by that very name: its own /etc/hosts may take it for 127.0.1.1.
        reached = _parts(nodes.meet)[0] if leads else address
        command = torchrun(nodes, job["number"], per_node, reached)
        status = subprocess.run(command, env=environment, check=False).returncode
        relay.join(1.0)
    if status == 0:
        return 0
    unknown = _unsaid(nodes.node, status, oom_kills() > kills_before)
    why = next(iter(written_reasons(folder).values()), unknown)
    if leads:
        emit({"outcome": why})
    elif (folder / BEGUN).exists():  # what failed is the leader's to say: one that was killed told nobody
        with suppress(Exception):  # the leader ended first
            store = meeting(nodes.meet, f"{nodes.identity}-{job['number']}", timedelta(seconds=5))
            store.compare_set(FAILED, "", json.dumps(why))
    return 1


def _unsaid(node: int, status: int, killed_for_memory: bool) -> dict[str, Any]:
    """Of members that ended without a word."""
    if killed_for_memory:
        detail = f"the kernel ended a process of node {node} for memory"
        return {"kind": "out-of-memory", "where": "host", "detail": detail}
    reason = f"torchrun ended with {status} on node {node}; its output is in the log"
    return {"kind": "crashed", "reason": reason}


def _relay(listener: socket.socket, emit: Emit) -> None:
    """From the one member of this node that speaks, to the supervisor."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            emit(json.loads(line))

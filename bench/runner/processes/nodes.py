"""Run jobs on several nodes: each node runs the same command, one leads, torchrun joins their processes.

For every job each node starts torchrun once, under the job's number: a meeting that breaks up must not
close the next one. All meet in the store behind the leader's proxy (meeting_proxy.py), and the leader's
processes bring the job. The other nodes do their part and join the next job, until the leader says that a
job was the last. A node that misses a meeting tries the numbers of later jobs. Imports torch only inside
`meeting`.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.base.linux_processes import oom_kills
from bench.base.machine_share import cores
from bench.base.strict_json import to_json
from bench.records.trial import Crashed, OutOfMemory
from bench.runner.processes.jobs import AnyRunJob, Emit, Nodes, host_and_port
from bench.runner.processes.ranks import written_reasons
from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    from torch.distributed import Store

# Environment variables for the members of a node, beside those that torchrun sets.
JOB, DEVICE, FOLDER, EVENTS = "BENCH_JOB", "BENCH_DEVICE", "BENCH_FOLDER", "BENCH_EVENTS"
NODE, STORE, ADDRESS = "BENCH_NODE", "BENCH_STORE", "BENCH_ADDRESS"
# BENCH_OWN_THREADS says that bench, and not the user, set OMP_NUM_THREADS.
THREADS, OWN_THREADS = "OMP_NUM_THREADS", "BENCH_OWN_THREADS"
BEGUN = "begun"  # a file in the members' folder: one of them has started
FAILED = "bench/failed"  # key of the meeting's store: why the first member failed
LEADER_WAITS, OTHER_WAITS = 600, 20  # seconds that the leader and another node wait at a meeting
# torchrun compares a node's heartbeats with another's clock: a node 15 seconds behind looked dead.
# A node that is really gone is noticed by other means.
SIGNS_MISSED = 720  # heartbeats, one in five seconds: an hour
STORE_PATIENCE = timedelta(minutes=5)
_SIOCGIFADDR = 0x8915  # Linux ioctl: an interface's address
# The variable with gloo's interface; by default gloo resolves the host's own name, often to 127.0.1.1.
GLOO = "GLOO_SOCKET_IFNAME"


def torchrun(nodes: Nodes, number: int, per_node: int, address: str | None = None) -> list[str]:
    """Return a node's torchrun command for job `number`; other nodes reach this node at `address`."""
    leads = nodes.node == 0
    rendezvous = torch_inside.rendezvous_options(
        is_host=False, join_seconds=LEADER_WAITS if leads else OTHER_WAITS, missed_signs=SIGNS_MISSED
    )
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={nodes.count}", f"--nproc-per-node={per_node}", "--max-restarts=0"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={nodes.store}", f"--rdzv-id={nodes.identity}-{number}"),
        f"--rdzv-conf={rendezvous}",
        *([f"--local-addr={address}"] if address else []),
        *("-m", "bench.runner.processes.node_member"),
    ]


def threads(environment: Mapping[str, str], per_node: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS for the members, unless the user has set it.

    torchrun would set it to 1 on a node with several members, which makes Adam on the host very slow.
    """
    if per_node == 1 or THREADS in environment:
        return {}
    return {THREADS: str(cores()), OWN_THREADS: "yes"}


def own_address(meet: str) -> str | None:
    """Return this node's address towards `meet`, since rented nodes do not know each other's names."""
    host, port = host_and_port(meet)
    with suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as datagram:
            datagram.connect(target)  # sends nothing: the kernel chooses the route
            return str(datagram.getsockname()[0])
    return None


def interface_among(address: str, others: Sequence[str]) -> str | None:
    """Return the interface by which the other nodes reach this one; None if all are on one machine.

    If the leader's own address is 127.0.1.1, the interface towards another node is returned.
    """
    for candidate in (address, *(own_address(f"{other}:1") for other in others)):
        if candidate and not ip_address(candidate).is_loopback and (name := interface_of(candidate)):
            return name
    return None


def interface_of(address: str) -> str | None:
    """Return the network interface that has this address."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        lines = map(str.split, Path("/proc/net/if_inet6").read_text().splitlines())
        return next((line[-1] for line in lines if line[0] == packed), None)
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            reply = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def meeting(store: str, run: str, patience: timedelta = STORE_PATIENCE) -> Store:
    """Open the meeting's store, which outlives the members; its keys belong to job `run`."""
    from torch.distributed import PrefixStore, TCPStore

    host, port = host_and_port(store)
    return PrefixStore(run, TCPStore(host, port, is_master=False, timeout=patience))


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name for `path` that fits into a socket's address, which holds 107 characters."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def across_nodes(job: AnyRunJob, emit: Emit, folder: Path) -> int:
    """Run this node's part of a job on several nodes. Returns an exit code.

    The leader emits the job's own final event; another node emits the kind of job that it followed.
    """
    nodes = job.nodes
    assert nodes is not None
    leads = nodes.node == 0
    events, address = folder / "events", own_address(nodes.meet)
    per_node = job.gpus // nodes.count
    environment = os.environ | threads(os.environ, per_node)
    environment |= {DEVICE: job.device, FOLDER: str(folder), EVENTS: str(events)}
    environment |= {NODE: str(nodes.node), STORE: nodes.store, ADDRESS: address or ""}
    environment |= torch_inside.OWN_STORE
    if leads:
        environment[JOB] = json.dumps(to_json(job))
    kills_before = oom_kills()
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(events) as path:
            listener.bind(path)
        listener.listen()
        relay = threading.Thread(target=_relay, args=(listener, emit), daemon=True)
        relay.start()
        # The leader's address is the meeting's host as given: its own /etc/hosts may say 127.0.1.1.
        reached = host_and_port(nodes.meet)[0] if leads else address
        command = torchrun(nodes, job.number, per_node, reached)
        status = subprocess.run(command, env=environment, check=False).returncode
        relay.join(1.0)
    if status == 0:
        return 0
    unexplained = _unexplained(nodes.node, status, killed_for_memory=oom_kills() > kills_before)
    why = next(iter(written_reasons(folder).values()), unexplained)
    if leads:
        emit({"outcome": why})
    elif (folder / BEGUN).exists():  # only the leader reports: tell it why a member was killed
        with suppress(Exception):  # the leader may have ended first
            store = meeting(nodes.store, f"{nodes.identity}-{job.number}", timedelta(seconds=5))
            store.compare_set(FAILED, "", json.dumps(why))
    return 1


def _unexplained(node: int, status: int, *, killed_for_memory: bool) -> dict[str, Any]:
    """Return the outcome of a job for which no member of this node has written a reason."""
    if killed_for_memory:
        return dict(to_json(OutOfMemory("host", f"the kernel ended a process of node {node} for memory")))
    return dict(to_json(Crashed(f"torchrun ended with {status} on node {node}; its output is in the log")))


def _relay(listener: socket.socket, emit: Emit) -> None:
    """Pass on the events of the one member of this node that reports."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            emit(json.loads(line))

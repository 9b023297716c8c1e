"""A Slurm cluster on this machine: munged, slurmctld and one slurmd per node, from Debian's packages.

The first node has this machine's host name, so that nodes that train together meet at an existing address.
In a network of namespaces, each node has a namespace and a host name of its own, and the controller is at the
switch.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.network import Network
from tests.e2e.nodes import free_port
from tests.e2e.services import SYSTEM, require
from tests.patience import until

_CONF = """
ClusterName=bench
SlurmctldHost={name}({address})
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MailProg=/bin/true
ReturnToService=2
JobRequeue=1
MpiDefault=none
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} {gres}\n"


@contextmanager
def slurm_cluster(
    folder: Path, count: int = 1, more: str = "", gres: str = "", net: Network | None = None
) -> Iterator[Mapping[str, str]]:
    """Start a cluster; yield the environment variables of its users.

    `more`: further lines of slurm.conf; `gres`: the generic resources of each node, as it spells them; `net`:
    the namespaces of the nodes.
    """
    require("munged", "slurmctld", "slurmd", "sbatch")
    for part in ("munge", "state"):
        (folder / part).mkdir(parents=True, mode=0o700)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    name = socket.gethostname().split(".")[0]
    conf = folder / "slurm.conf"
    places = [_place(name, number, net) for number in range(count)]
    address = "127.0.0.1" if net is None else net.at_switch
    lines = [
        _NODE.format(
            node=place.node, host=place.host, address=place.address, port=free_port(), cpus=os.cpu_count(),
            gres=gres,
        )
        for place in places
    ]  # fmt: skip
    head = _CONF.format(name=name, folder=folder, controller=free_port(), address=address)
    conf.write_text(head + more + "".join(lines))
    environment = {"SLURM_CONF": str(conf), "PATH": SYSTEM}
    sockets = [
        f"--{name}={folder}/munge/{name.split('-')[0]}"
        for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")
    ]
    inside = [] if net is None else net.inside_switch()
    with ExitStack() as stack:
        stack.enter_context(_daemon(["munged", "--foreground", "--force", *sockets], folder / "munged.log"))
        _until((folder / "munge/socket").exists, "munged", folder)
        controller = [*inside, "slurmctld", "-D", "-f", str(conf)]
        stack.enter_context(_daemon(controller, folder / "slurmctld.log"))
        for place in places:
            slurmd = [*place.inside, "slurmd", "-D", "-N", place.node, "-f", str(conf)]
            stack.enter_context(_daemon(slurmd, folder / f"{place.node}.log"))
        states = [*inside, "sinfo", "-h", "-N", "-p", "main", "-o", "%T"]
        _until(lambda: _ask(states, environment).split() == ["idle"] * count, "idle nodes", folder)
        yield environment


@dataclass(frozen=True)
class _Place:
    """Where the slurmd of one node runs."""

    node: str
    host: str
    address: str
    inside: list[str]  # the beginning of commands that run there


def _place(name: str, number: int, net: Network | None) -> _Place:
    if net is None:
        return _Place(name if number == 0 else f"{name}-{number + 1}", name, "127.0.0.1", [])
    node = f"n{number + 1}"
    # `ip netns exec` would hide the control groups, which slurmd needs.
    enter = ["nsenter", f"--net=/run/netns/{net.namespace(number)}"]
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node]
    return _Place(node, node, net.address(number), [*enter, *named])


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.stdout


@contextmanager
def _daemon(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"PATH": SYSTEM})
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _until(true: Callable[[], object], what: str, folder: Path) -> None:
    try:
        until(true, what)
    except AssertionError as error:
        logs = (f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log"))
        raise AssertionError("\n".join([str(error), *logs])) from None

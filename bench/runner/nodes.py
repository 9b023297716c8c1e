"""Several nodes: each runs the same command, one of them leads, torchrun brings their processes together.

For every job each node starts torchrun once, under the job's number: a meeting that breaks up must not
close the next one. The leader's hosts the meeting, and its processes bring the job; the others do their
part and join the next one, until the leader says that it was the last. Who misses a meeting tries the
numbers that follow.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.runner.ranks import written_reasons

Emit = Callable[[dict[str, Any]], None]
# What the members of a node are told, beside what torchrun sets.
JOB, DEVICE, FOLDER, EVENTS = "BENCH_JOB", "BENCH_DEVICE", "BENCH_FOLDER", "BENCH_EVENTS"
LAST = {"kind": "last"}
LEADER_WAITS, OTHER_WAITS = 600, 20  # seconds, for the others to come to a meeting


@dataclass(frozen=True, slots=True)
class Nodes:
    """This node's place among several."""

    count: int
    node: int  # 0 leads
    meet: str  # HOST:PORT on the leader, which all nodes reach
    identity: str  # of the run: the manifest's digest, which all nodes have


def torchrun(nodes: Nodes, number: int, per_node: int) -> list[str]:
    """The command of one node for job `number`."""
    leads = nodes.node == 0
    return [
        sys.executable, "-m", "torch.distributed.run",
        f"--nnodes={nodes.count}", f"--nproc-per-node={per_node}", "--max-restarts=0",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes.meet}", f"--rdzv-id={nodes.identity}-{number}",
        # Two nodes of one machine, as in the tests, would both take the place for theirs.
        f"--rdzv-conf=is_host={leads},join_timeout={LEADER_WAITS if leads else OTHER_WAITS}",
        "-m", "bench.runner.member",
    ]  # fmt: skip


def across_nodes(job: dict[str, Any], emit: Emit, folder: Path) -> int:
    """Runs this node's part of a job; the leader's ends with the job's own final event."""
    nodes = Nodes(**job["nodes"])
    leads = nodes.node == 0
    path = str(folder / "events")
    environment = os.environ | {DEVICE: job["device"], FOLDER: str(folder), EVENTS: path}
    if leads:
        environment[JOB] = json.dumps(job)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        relay = threading.Thread(target=_relay, args=(listener, emit), daemon=True)
        relay.start()
        command = torchrun(nodes, job["number"], job["gpus"] // nodes.count)
        status = subprocess.run(command, env=environment, check=False).returncode
        relay.join(1.0)
    if status == 0 or not leads:  # what failed is the leader's to say
        return status
    unknown = {"kind": "crashed", "reason": f"torchrun ended with {status}; its output is in the log"}
    emit({"outcome": next(iter(written_reasons(folder).values()), unknown)})
    return 1


def _relay(listener: socket.socket, emit: Emit) -> None:
    """From the one member of this node that speaks, to the supervisor."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            emit(json.loads(line))

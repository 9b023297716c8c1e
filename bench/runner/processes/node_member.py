"""A member of a job on several nodes: the process that torchrun starts for a device. Imports torch.

The members of the leading node bring the job. The first member of each node reports to its supervisor: on
the leader all events of the job, on another node the kind of the job. A member that fails writes its reason
to a file of its node and to the store of the meeting, where all others read it and end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bench import __version__
from bench.base.errors import EnvironmentCannot
from bench.base.strict_json import to_json, union_from_json
from bench.records.trial import Crashed
from bench.runner.machine.disk_room import no_room
from bench.runner.processes import nodes
from bench.runner.processes.jobs import LAST, AnyRunJob, Emit, LastJob, WorkerEvent, devices_text
from bench.runner.processes.ranks import write_reason
from bench.runner.processes.worker import classify, dispatch
from bench.runner.trial import team
from bench.runner.trial.device import Device
from bench.training.vendor import torch_inside

MEMBER = "bench/node"  # key of the meeting's store, with "/RANK": how that member was started
LONGER_THAN_ANY_JOB = timedelta(days=7)
GRACE_SECONDS = 2.0  # for another member's reason to arrive: this crash may follow from it


def main() -> int:
    """Meet the members on all nodes, do this member's part of one job, and return the exit code."""
    if os.environ.pop(nodes.OWN_THREADS, None):  # OpenMP has read it by now; the user did not set it
        del os.environ[nodes.THREADS]
    kind, folder = os.environ[nodes.DEVICE], Path(os.environ[nodes.FOLDER])
    device = Device.own("cuda" if kind == "cuda" else "cpu")
    device.choose()
    (folder / nodes.BEGUN).touch()
    store = nodes.meeting(os.environ[nodes.STORE], torch_inside.rendezvous_id())
    try:
        os.environ.update(place(store, os.environ))
    except EnvironmentCannot as error:  # every member refuses for the same reason
        write_reason(folder, int(os.environ["RANK"]), to_json(Crashed(str(error))))
        report_to_supervisor(LAST, str(error))
        return 1
    rank = int(os.environ["RANK"])
    ending = end_with_others(folder, rank)
    try:
        work(kind, device, folder, store)
    except Exception as error:
        traceback.print_exc()
        with ending:
            write_reason(folder, rank, cause(to_json(no_room(error, folder) or classify(error)), store))
            os._exit(1)
    return 0


def work(kind: str, device: Device, folder: Path, store: dist.Store) -> None:
    """Do this member's part of the job."""
    members = team.join(kind, alone=False, store=dist.PrefixStore("team", store))
    # Only the leader's members have the job; all others get it from them.
    messages = members.gather(json.loads(os.environ[nodes.JOB]) if nodes.JOB in os.environ else None)
    message = next(message for message in messages if message is not None)
    job: AnyRunJob = union_from_json(AnyRunJob, message)
    if isinstance(job, LastJob):
        report_to_supervisor(job.kind, job.why)
        return
    emit = report_to_supervisor(job.kind)
    final = dispatch(job, device, members, folder, emit)
    members.wait()
    emit(final)


def end_with_others(folder: Path, rank: int) -> threading.Lock:
    """Watch for a member that fails, and then end this process, which NCCL would keep waiting without end.

    The thread that holds the returned lock writes the reason and ends the process.
    """
    ending = threading.Lock()
    # A second connection to the store: the thread below keeps it busy all the time.
    store = nodes.meeting(os.environ[nodes.STORE], torch_inside.rendezvous_id())

    def watch() -> None:
        try:
            store.wait([nodes.FAILED], LONGER_THAN_ANY_JOB)
            why = json.loads(store.get(nodes.FAILED))
        except dist.DistError:
            why = to_json(Crashed("the meeting's store is gone, and the leader with it"))
        with ending:
            write_reason(folder, rank, why)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return ending


def place(store: dist.Store, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return this member's RANK, and gloo's interface unless the user has set it, as environment variables.

    Ranks follow the numbers of the nodes; torchrun would order them by address. EnvironmentCannot if
    the members do not fit together.
    """
    node, per_node = int(environment[nodes.NODE]), int(environment["LOCAL_WORLD_SIZE"])
    member = {
        "node": node,
        "devices": [per_node, environment[nodes.DEVICE]],
        "bench": __version__,
        "address": environment[nodes.ADDRESS],
    }
    store.set(f"{MEMBER}/{environment['RANK']}", json.dumps(member))
    ranks = range(int(environment["WORLD_SIZE"]))
    members = [json.loads(store.get(f"{MEMBER}/{rank}")) for rank in ranks]
    _require_fitting(members)
    others = [member["address"] for member in members if member["node"] != node]
    interface = nodes.interface_among(environment[nodes.ADDRESS], others)
    gloo = {nodes.GLOO: interface} if interface and nodes.GLOO not in environment else {}
    return {"RANK": str(node * per_node + int(environment["LOCAL_RANK"])), **gloo}


def _require_fitting(members: Sequence[Mapping[str, Any]]) -> None:
    """Refuse nodes with different versions of bench, with different devices, or with the same number."""
    first = min(members, key=lambda member: int(member["node"]))
    for member in members:
        names = f"node {first['node']}", f"node {member['node']}"
        if member["bench"] != first["bench"]:
            raise EnvironmentCannot(
                f"{names[0]} has bench {first['bench']}, {names[1]} has {member['bench']}",
                advice="install the same version on all nodes",
            )
        if member["devices"] != first["devices"]:
            raise EnvironmentCannot(
                f"{names[0]} trains on {devices_text(*first['devices'])}, "
                f"{names[1]} on {devices_text(*member['devices'])}",
                advice='"gpus" in the manifest counts those of each node; CUDA_VISIBLE_DEVICES selects them',
            )
    per_node = int(first["devices"][0])
    counts = Counter(member["node"] for member in members)
    if shared := sorted(node for node, count in counts.items() if count > per_node):
        raise EnvironmentCannot(
            f"more than one node was started with --node {shared[0]}",
            advice=f"give each node a number of its own, 0 to {len(members) // per_node - 1}",
        )


def report_to_supervisor(kind: str, why: str | None = None) -> Emit:
    """Return the callback for this member's events.

    The leader's first member passes the events to its supervisor. Another node's first member only tells its
    supervisor the job's kind, and, if the leader ends the run, why.
    """
    if os.environ["LOCAL_RANK"] != "0":
        return silent
    line = socket.socket(socket.AF_UNIX)
    with nodes.short_path(Path(os.environ[nodes.EVENTS])) as path:
        line.connect(path)

    def say(event: WorkerEvent) -> None:
        line.sendall(json.dumps(event, allow_nan=False).encode() + b"\n")

    if nodes.JOB in os.environ:
        return say
    say({"followed": kind, "why": why})
    return silent


def silent(_event: WorkerEvent) -> None:
    """Drop the event: another member reports it."""


def cause(outcome: dict[str, Any], store: dist.Store) -> dict[str, Any]:
    """Return why the job failed: the first reason in the store, which is `outcome` if the store had none.

    A crash waits before it is stored, since memory that ran out on another member may have caused it.
    """
    if outcome["kind"] == "crashed":
        time.sleep(GRACE_SECONDS)
    first: dict[str, Any] = json.loads(store.compare_set(nodes.FAILED, "", json.dumps(outcome)))
    return first


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads can abort an interpreter that shuts down normally

"""One process of a job on several nodes, as torchrun starts it.

The members of the leading node bring the job. The first one of each node reports to its supervisor: the
leader's everything that happens, another's what kind of job it is. A member that fails leaves its reason
in a file of its node, and in the store of the meeting, where all others find it, and end.
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
from bench.base.strict_json import to_json
from bench.records.trial import Crashed
from bench.runner.machine.disk_room import no_room
from bench.runner.processes.nodes import (
    ADDRESS,
    BEGUN,
    DEVICE,
    EVENTS,
    FAILED,
    FOLDER,
    GLOO,
    JOB,
    LAST,
    MEET,
    NODE,
    OWN_THREADS,
    THREADS,
    interface_among,
    meeting,
    short_path,
)
from bench.runner.processes.ranks import write_reason
from bench.runner.processes.worker import Emit, classify, dispatch
from bench.runner.trial import team
from bench.runner.trial.device import Device
from bench.training.vendor import torch_inside

NODE_OF = "bench/node"  # keys of the meeting's store
LONG = timedelta(days=7)  # than any job
GRACE_SECONDS = 2.0  # for the reason of another member to arrive, of which this one only saw the fall


def main() -> int:
    if os.environ.pop(OWN_THREADS, None):  # OpenMP came with torch and has read it: no switch of the user's
        del os.environ[THREADS]
    kind, folder = os.environ[DEVICE], Path(os.environ[FOLDER])
    device = Device.own("cuda" if kind == "cuda" else "cpu")
    device.choose()
    (folder / BEGUN).touch()
    store = meeting(os.environ[MEET], torch_inside.rendezvous_id())
    try:
        os.environ.update(place(store, os.environ))
    except EnvironmentCannot as error:  # every member finds that
        write_reason(folder, int(os.environ["RANK"]), to_json(Crashed(str(error))))
        reporter(LAST | {"why": str(error)})
        return 1
    rank = int(os.environ["RANK"])
    ending = end_with_others(folder, rank)
    try:
        work(kind, device, folder)
    except Exception as error:
        traceback.print_exc()
        with ending:
            write_reason(folder, rank, cause(to_json(no_room(error, folder) or classify(error)), store))
            os._exit(1)
    return 0


def work(kind: str, device: Device, folder: Path) -> None:
    """This member's part of the job."""
    members = team.join(kind, alone=False)
    job = agreed(json.loads(os.environ[JOB]) if JOB in os.environ else None)
    say = reporter(job)
    if job["kind"] != LAST["kind"]:
        final = dispatch(job, device, members, folder, say)
        members.wait()
        say(final)


def end_with_others(folder: Path, rank: int) -> threading.Lock:
    """Ends this process once another member has failed: inside of NCCL it would wait for that one for ever.

    Whoever has the lock says why, and ends the process.
    """
    ending = threading.Lock()
    # A connection of its own, since it is in use all the time.
    store = meeting(os.environ[MEET], torch_inside.rendezvous_id())

    def watch() -> None:
        try:
            store.wait([FAILED], LONG)
            why = json.loads(store.get(FAILED))
        except dist.DistError:
            why = to_json(Crashed("the meeting's store is gone, and the leader with it"))
        with ending:
            write_reason(folder, rank, why)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return ending


def place(store: dist.Store, environment: Mapping[str, str]) -> Mapping[str, str]:
    """RANK by the order in which the user numbered the nodes, where torchrun goes by addresses; and by which
    interface gloo reaches the others, where the user has not said."""
    node, each = int(environment[NODE]), int(environment["LOCAL_WORLD_SIZE"])
    mine = {"node": node, "devices": [each, environment[DEVICE]], "bench": __version__}
    store.set(f"{NODE_OF}/{environment['RANK']}", json.dumps(mine | {"address": environment[ADDRESS]}))
    ranks = range(int(environment["WORLD_SIZE"]))
    everyone = [json.loads(store.get(f"{NODE_OF}/{rank}")) for rank in ranks]
    _require_one_kind(everyone)
    others = [member["address"] for member in everyone if member["node"] != node]
    found = interface_among(environment[ADDRESS], others)
    told = {GLOO: found} if found and GLOO not in environment else {}
    return {"RANK": str(node * each + int(environment["LOCAL_RANK"])), **told}


def _require_one_kind(members: Sequence[Mapping[str, Any]]) -> None:
    """Of one version, on as many devices each, under a number of its own."""
    first = min(members, key=lambda member: int(member["node"]))
    for one in members:
        if one["bench"] != first["bench"]:
            raise EnvironmentCannot(
                f"node {first['node']} has bench {first['bench']}, node {one['node']} has {one['bench']}",
                advice="install the same on all of them",
            )
        if one["devices"] != first["devices"]:
            raise EnvironmentCannot(
                f"node {first['node']} trains on {_devices(first)}, node {one['node']} on {_devices(one)}",
                advice='"gpus" in the manifest is how many of each node; CUDA_VISIBLE_DEVICES is which',
            )
    each = int(first["devices"][0])
    count = Counter(member["node"] for member in members)
    if twice := sorted(node for node, of_it in count.items() if of_it > each):
        raise EnvironmentCannot(
            f"more than one node was started with --node {twice[0]}",
            advice=f"each needs a number of its own, 0 to {len(members) // each - 1}",
        )


def _devices(member: Mapping[str, Any]) -> str:
    count, kind = member["devices"]
    return f"{count} {'GPUs' if kind == 'cuda' else 'processes of its CPU'}"


def agreed(mine: dict[str, Any] | None) -> dict[str, Any]:
    """The job, which the leader's members have and the others are given."""
    everyone: list[dict[str, Any] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return next(job for job in everyone if job is not None)


def reporter(job: dict[str, Any]) -> Emit:
    """Says to this node's supervisor what it should hear from this member."""
    if os.environ["LOCAL_RANK"] != "0":
        return silent
    line = socket.socket(socket.AF_UNIX)
    with short_path(Path(os.environ[EVENTS])) as path:
        line.connect(path)

    def say(event: dict[str, Any]) -> None:
        line.sendall(json.dumps(event, allow_nan=False).encode() + b"\n")

    if JOB in os.environ:
        return say
    say({"followed": job["kind"], "why": job.get("why")})
    return silent


def silent(_event: dict[str, Any]) -> None:
    """Another member speaks."""


def cause(mine: dict[str, Any], store: dist.Store) -> dict[str, Any]:
    """Another member's reason where it ran out of memory or was first; else this one's, for all to see."""
    if mine["kind"] == "crashed":
        time.sleep(GRACE_SECONDS)
    found: dict[str, Any] = json.loads(store.compare_set(FAILED, "", json.dumps(mine)))
    return found


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads can abort an interpreter that ends in good order

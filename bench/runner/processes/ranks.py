"""Fork one process for each device of this node, and end them together. Imports no torch.

A rank that runs out of memory leaves the others waiting inside a collective, where no message reaches
them. So a rank that fails writes its reason to a file and ends, and the launching process ends the rest.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.base.linux_processes import die_with_parent, ended_for_memory, ended_how, oom_kills
from bench.base.strict_json import to_json
from bench.records.trial import Crashed, OutOfMemory
from bench.runner import LISTENER
from bench.runner.machine.disk_room import NoRoom, full_at, no_room
from bench.runner.processes.jobs import Emit, WorkerEvent

GRACE_SECONDS = 2.0  # for the other ranks to write their own reasons
POLL_SECONDS = 0.05


def together(size: int, member: Callable[[Emit], int], emit: Emit, folder: Path) -> int:
    """Run `member` once in each of `size` ranks.

    Returns 0 if rank 0 succeeded, which needs all others; else 1, after emitting why ranks failed.
    """
    kills_before = oom_kills()
    ranks = _fork(size, member, emit, folder)
    statuses: dict[int, int] = {}  # wait statuses by rank, in the order in which the ranks ended
    deadline = None
    while len(statuses) < size:
        for pid, rank in ranks.items():
            if rank not in statuses and (status := _wait_status(pid)) is not None:
                statuses[rank] = status
        if deadline is None and any(statuses.values()):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for pid, rank in ranks.items():
                if rank not in statuses:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    if statuses[0] == 0:
        return 0
    emit({"outcome": _reason(folder, statuses, kills_before)})
    return 1


def _fork(size: int, member: Callable[[Emit], int], emit: Emit, folder: Path) -> dict[int, int]:
    """Fork the ranks, with the environment that torchrun would give them. Returns ranks by process id.

    The ranks inherit the open port at which they meet: a port that was merely found free could be taken
    before rank 0 opens it.
    """
    launcher = os.getpid()
    ranks = {}
    with socket.create_server(("127.0.0.1", 0), backlog=size) as meeting:
        port = str(meeting.getsockname()[1])
        common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, LISTENER: str(meeting.fileno())}
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                die_with_parent(launcher)
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), **common}
                os._exit(member(_emit_of_rank(rank, emit, folder)))
            ranks[pid] = rank
    return ranks


def _emit_of_rank(rank: int, emit: Emit, folder: Path) -> Emit:
    """Return a rank's callback, which emits rank 0's events and writes any rank's failure to a file."""

    def say(event: WorkerEvent) -> None:
        if event.get("outcome", {}).get("kind", "measured") != "measured":
            try:
                write_reason(folder, rank, event["outcome"])
            except OSError as error:  # no room for the reason either
                os._exit(errno.ENOSPC if no_room(error, folder) else 1)
        elif rank == 0:
            emit(event)

    return say


def _wait_status(pid: int) -> int | None:
    """Return the wait status of a child that ended, or None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def write_reason(folder: Path, rank: int, outcome: dict[str, Any]) -> None:
    """Write why a rank failed to its file in the job's folder, for `written_reasons`."""
    (folder / f"failed-{rank}.json").write_text(json.dumps(outcome))


def written_reasons(folder: Path) -> dict[int, dict[str, Any]]:
    """Return why ranks failed, by rank; crashes last: memory that ran out elsewhere often causes them."""
    paths = {int(path.stem.partition("-")[2]): path for path in folder.glob("failed-*.json")}
    reasons = {rank: json.loads(paths[rank].read_text()) for rank in sorted(paths)}
    return dict(sorted(reasons.items(), key=lambda pair: pair[1]["kind"] == "crashed"))


def _reason(folder: Path, statuses: dict[int, int], kills_before: int) -> dict[str, Any]:
    """Return the job's outcome: memory or disk that ran out on any rank, else why the first rank failed."""
    written = written_reasons(folder)
    for outcome in written.values():
        if outcome["kind"] != "crashed":
            return outcome
    first = next(rank for rank, status in statuses.items() if status)
    if first in written:
        return written[first] | {"reason": f"rank {first}: {written[first]['reason']}"}
    reason: OutOfMemory | NoRoom | Crashed
    if ended_for_memory(statuses[first], kills_before):
        reason = OutOfMemory("host", f"the kernel ended rank {first} for memory")
    elif os.waitstatus_to_exitcode(statuses[first]) == errno.ENOSPC:
        reason = full_at(folder, os.strerror(errno.ENOSPC))
    else:
        reason = Crashed(f"rank {first} ended {ended_how(statuses[first])}, without an outcome")
    return dict(to_json(reason))

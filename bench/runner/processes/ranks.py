"""One process a device, forked from one that has touched no device; they end together.

A member that runs out of memory leaves the others waiting inside a collective, where no message of
ours reaches them: so whoever fails writes down why and ends, and this process ends the rest.
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
from bench.runner.machine.disk_room import full_at, no_room
from bench.runner.trial.team import LISTENER

Emit = Callable[[dict[str, Any]], None]
GRACE_SECONDS = 2.0  # for the others to write down their own reasons
POLL_SECONDS = 0.05


def together(size: int, member: Callable[[Emit], int], emit: Emit, folder: Path) -> int:
    """Runs `member` once a rank; 0 if the first rank got to its end, which needs all others."""
    kills_before = oom_kills()
    ranks = _fork(size, member, emit, folder)
    ended: dict[int, int] = {}  # wait statuses, in the order in which they ended
    deadline = None
    while len(ended) < size:
        for pid, rank in ranks.items():
            if rank not in ended and (status := _ended(pid)) is not None:
                ended[rank] = status
        if deadline is None and any(ended.values()):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for pid, rank in ranks.items():
                if rank not in ended:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    if ended[0] == 0:
        return 0
    emit({"outcome": _reason(folder, ended, kills_before)})
    return 1


def _fork(size: int, member: Callable[[Emit], int], emit: Emit, folder: Path) -> dict[int, int]:
    """As torchrun does it: the environment says who is who. Returns process ids and their ranks.

    The port is taken here and handed on open: one that was only found free may be someone else's by then.
    """
    launcher = os.getpid()
    ranks = {}
    with socket.create_server(("127.0.0.1", 0), backlog=size) as meeting:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                die_with_parent(launcher)
                os.environ |= {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                    "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(meeting.getsockname()[1]), LISTENER: str(meeting.fileno()),
                }  # fmt: skip
                os._exit(member(_voice(rank, emit, folder)))
            ranks[pid] = rank
    return ranks


def _voice(rank: int, emit: Emit, folder: Path) -> Emit:
    """The first rank speaks for all; of another, only why it failed is kept, and so for the first."""

    def say(event: dict[str, Any]) -> None:
        if event.get("outcome", {}).get("kind", "measured") != "measured":
            try:
                write_reason(folder, rank, event["outcome"])
            except OSError as error:  # no room for that either
                os._exit(errno.ENOSPC if no_room(error, folder) else 1)
        elif rank == 0:
            emit(event)

    return say


def _ended(pid: int) -> int | None:
    """Its wait status, or None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return status if found else None


def write_reason(folder: Path, rank: int, outcome: dict[str, Any]) -> None:
    (folder / f"failed-{rank}.json").write_text(json.dumps(outcome))


def written_reasons(folder: Path) -> dict[int, dict[str, Any]]:
    """Why members failed, by rank; memory that ran out first: the others only saw it fall."""
    paths = {int(path.stem.partition("-")[2]): path for path in folder.glob("failed-*.json")}
    found = {rank: json.loads(paths[rank].read_text()) for rank in sorted(paths)}
    return dict(sorted(found.items(), key=lambda pair: pair[1]["kind"] == "crashed"))


def _reason(folder: Path, ended: dict[int, int], kills_before: int) -> dict[str, Any]:
    """Memory that ran out is the cause, whoever it was; else whoever failed first."""
    written = written_reasons(folder)
    for outcome in written.values():
        if outcome["kind"] != "crashed":
            return outcome
    first = next(rank for rank, status in ended.items() if status)
    if first in written:
        return written[first] | {"reason": f"rank {first}: {written[first]['reason']}"}
    if ended_for_memory(ended[first], kills_before):
        detail = f"the kernel ended rank {first} for memory"
        return {"kind": "out-of-memory", "where": "host", "detail": detail}
    if os.waitstatus_to_exitcode(ended[first]) == errno.ENOSPC:
        full: dict[str, Any] = to_json(full_at(folder, os.strerror(errno.ENOSPC)))
        return full
    reason = f"rank {first} ended {ended_how(ended[first])}, without an outcome"
    return {"kind": "crashed", "reason": reason}

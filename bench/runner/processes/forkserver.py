"""The fork server: import torch once, then fork one process group for each job.

python -m bench.runner.processes.forkserver FD WORK AHEAD...

FD is a socket to the supervisor; each line either way is a JSON object. WORK is the function (module:name)
that does a job. AHEAD is what each job would otherwise prepare again: modules to import and functions
(module:name) to call before the first fork.

In:  {"job": ..., "log": path}.
Out: {"ready": seconds}, then for each job {"pid": n}, the events of the job, {"exited": status}.

When the socket closes, for any reason, every process below this one is killed, the job's scratch folder is
removed, and the server ends: a supervisor that was killed leaves nothing behind. The server never
initialises CUDA and has one thread, so that its forks start clean.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from shutil import rmtree
from typing import Any

from bench.base.linux_processes import (
    adopt_orphans,
    die_with_parent,
    end_all_children,
    kill_group,
    preferred_victim,
)
from bench.training.vendor import torch_inside

Event = dict[str, Any]
Work = Callable[[Callable[[Event], None]], int]


def main() -> int:
    """Import and prepare, then serve jobs from the socket until it closes."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    torch_inside.keep_cuda_asleep()
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's to handle
    started = time.perf_counter()
    gc.disable()  # importing takes four seconds, with the garbage collector five
    preload([*sys.argv[3:], sys.argv[2].partition(":")[0]])
    gc.freeze()  # half a million objects that are never freed: jobs need not scan them
    threads = len(list(Path("/proc/self/task").iterdir()))
    say(connection, {"ready": time.perf_counter() - started, "threads": threads})
    lines = connection.makefile("rb")
    scratch = None
    with suppress(ConnectionError):
        while line := lines.readline():
            request = json.loads(line)
            scratch = request["job"].get("scratch")
            work = partial(resolve_name(sys.argv[2]), request["job"])
            serve(connection, work, Path(request["log"]), scratch)
    end_all_children()
    if scratch is not None:
        rmtree(scratch, ignore_errors=True)
    return 0


def preload(ahead: list[str]) -> None:
    """Import modules, and call functions given as module:name."""
    for name in ahead:
        with suppress(Exception):  # the worker that needs the module reports what is missing
            found = resolve_name(name)
            if ":" in name:
                found()


def serve(connection: socket.socket, work: Work, log: Path, scratch: str | None = None) -> None:
    """Fork a process group for one job, and report when the job has ended."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os._exit(run_job(connection, work, log, parent))
    say(connection, {"pid": pid})
    status = wait(connection, pid)
    kill_group(pid)
    end_all_children()
    if scratch is not None:
        empty(Path(scratch))
    say(connection, {"exited": status})


def empty(scratch: Path) -> None:
    """Remove the files that a killed job left: the next job needs the room on the disk."""
    with suppress(OSError):
        for path in scratch.iterdir():
            rmtree(path, ignore_errors=True)


def wait(connection: socket.socket, pid: int) -> int:
    """Wait for the job to end and return its wait status; kill the job if the supervisor goes away first."""
    watched = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        while watched not in (ready := [fd for fd, _ in poll.poll()]):
            if ready:  # the supervisor is gone
                kill_group(pid)
                poll.unregister(connection)
    finally:
        os.close(watched)
    return os.waitpid(pid, 0)[1]


def run_job(connection: socket.socket, work: Work, log: Path, parent: int) -> int:
    """Run the job in the forked child: in a separate session, with its output in the log."""
    os.setsid()
    die_with_parent(parent)
    preferred_victim()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    gc.enable()
    code = work(lambda event: say(connection, event))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def say(connection: socket.socket, event: Event) -> None:
    """Send an event to the supervisor, as a line of JSON."""
    # Begin with a line break: if a worker was killed within a line, the next event is still read.
    connection.sendall(b"\n" + json.dumps(event, allow_nan=False).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())

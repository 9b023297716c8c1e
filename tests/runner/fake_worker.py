"""A worker that misbehaves on request; tests of the supervisor fork it instead of a trial."""

from __future__ import annotations

import errno
import gc
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.base import linux_processes
from bench.runner.processes import ranks
from bench.runner.processes.ranks import together

Emit = Callable[[dict[str, Any]], None]


def work(job: dict[str, Any], emit: Emit) -> int:
    name, _, argument = str(job["precisions"][0]).partition(":")
    actions: dict[str, Callable[[Emit, str], int]] = {
        "answer": answer,
        "environment": lambda emit, argument: answer(emit, os.environ[argument]),
        "collector": collector,
        "sleep": sleep,
        "slow": slow,
        "die": die,
        "grow": grow,
        "orphan": orphan,
        "leave-code": leave_code,
        "compile": compile_until,
        "hanging-compiler": lambda emit, argument: subprocess.call(["sleep", "600"]),
        "half-line": half_line,
        "team": team,
        "flood": flood,
        "quiet": lambda emit, argument: int(argument),
    }
    return actions[name](emit, argument)


def answer(emit: Emit, argument: str) -> int:
    ceiling = {"name": argument, "device": 0, "unit": "B/s", "work": 1, "samples": [1.0]}
    emit({"ceilings": [ceiling]})
    return 0


def leave_code(emit: Emit, argument: str) -> int:
    """Leave a library among the compiled code; report what was there before, or die if asked to."""
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    before = sorted(file.name for file in folder.iterdir() if file.suffix == ".so")
    (folder / f"{argument}.so").touch()
    return die(emit, argument) if argument == "SIGKILL" else answer(emit, f"found {before}")


def collector(emit: Emit, argument: str) -> int:
    """Report whether garbage collection is on, and whether it scans objects of the preloaded modules."""
    ahead = any(found is tempfile.__dict__ for found in gc.get_objects())
    return answer(emit, f"collects: {gc.isenabled()}, ahead: {ahead}")


def team(emit: Emit, argument: str) -> int:
    """Start two members; the second fails as requested while the first waits for it forever."""

    def member(say: Emit) -> int:
        if os.environ["RANK"] == "0":
            if argument != "answer":
                time.sleep(600)
            return answer(say, "answered")
        if argument == "memory":
            say({"outcome": {"kind": "out-of-memory", "where": "gpu", "detail": "of rank 1"}})
        elif argument == "error":
            say({"outcome": {"kind": "crashed", "reason": "ValueError: no"}})
        elif argument == "full":
            say({"outcome": {"kind": "no-room", "where": "/scratch", "reason": "no room, 0 B free"}})
        elif argument == "speechless":  # a full disk has no room for the reason either
            os._exit(errno.ENOSPC)
        elif argument in ("killed", "killed-for-memory"):
            os.kill(os.getpid(), signal.SIGKILL)
        return int(argument != "answer")

    if argument == "killed-for-memory":
        # The kernel raises this counter only when it kills for lack of memory.
        linux_processes.oom_kills = lambda: math.inf
    ranks.GRACE_SECONDS = 0.2  # the first member has no reason to write
    with tempfile.TemporaryDirectory() as folder:
        return together(2, member, emit, Path(folder))


def slow(emit: Emit, argument: str) -> int:
    time.sleep(float(argument))
    return answer(emit, "slow")


def sleep(emit: Emit, argument: str) -> int:
    """Sleep forever, with or without reporting progress."""
    emit({"phase": "sleeping"})
    while True:
        time.sleep(0.05)
        if argument == "talking":
            emit({"step": 1})


def compile_until(emit: Emit, argument: str) -> int:
    """Let a program compute, without an event, until the file `argument` exists."""
    emit({"phase": "build"})
    subprocess.run(["sh", "-c", f"until [ -e {argument} ]; do :; done"], check=True)
    return answer(emit, "compiled")


def die(emit: Emit, argument: str) -> int:
    emit({"phase": "dying"})
    os.kill(os.getpid(), getattr(signal, argument))
    return 0


def grow(emit: Emit, argument: str) -> int:
    emit({"phase": "growing"})
    kept = bytearray(os.urandom(1 << 20) * int(argument))
    time.sleep(60)
    return len(kept)


def orphan(emit: Emit, argument: str) -> int:
    """Leave a grandchild behind in a separate session; write its pid to the file `argument`."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    Path(argument).write_text(f"{os.getpid()} {child.pid}")
    emit({"phase": "orphaned"})
    time.sleep(600)
    return 0


def flood(emit: Emit, argument: str) -> int:
    """Print the given number of MiB, and end only after the log has been truncated."""
    os.write(1, b"first\n")
    for _ in range(int(argument)):
        os.write(1, b"x" * (1 << 20))
    while os.fstat(1).st_size > 1 << 20:
        time.sleep(0.05)
    os.write(1, b"last\n")
    return answer(emit, "cut")


def half_line(emit: Emit, argument: str) -> int:
    """Get killed in the middle of an event."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - the precisions are numbers, not files
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):  # noqa: PTH115
                os.write(fd, b'{"outcome": {"kind": "meas')
        except OSError:
            continue
    os.kill(os.getpid(), signal.SIGKILL)
    return 0

"""A Python for tests with torch, transformers and others already imported; `quick_python()` is its path.

Running `quick_python() ARGUMENTS...` gives a process with these arguments and with the environment, working
folder, open files, network and host name of its caller. It saves six seconds of processor time compared with
an ordinary Python. The program at that path is small: it asks a server (`python -m tests.warm FOLDER`) to
fork, passes signals on to the fork, and ends with the fork's exit code. If it is killed, the fork is killed
too. Inside the fork, sys.executable is the same path, so processes that the fork starts are as quick,
including the members that torchrun starts.

One server serves all test processes of a session. It imports bench's commands from this checkout too, for
`python -m bench` that would import them from here. A process that would import bench from somewhere else, as
a node does, each one after a file of bench has changed, and every other program import bench by themselves.

The fork server of a run measures the ceilings of the machine with small matrices: large ones took half of the
processor time of a tiny run. A run by an ordinary Python has the large ones.

One defect stays hidden under this Python: a module of bench that forgot to import a part of another
package. Each program that some tests start in this way is therefore started by an ordinary Python in at least
one test.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.patience import until

ROOT = Path(__file__).parents[1]
FAMILIES = ("gpt_neox", "roberta", "vit", "convnext", "mamba")
AHEAD = [
    "numpy", "torch", "torch.distributed.run", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "transformers", "transformers.trainer",
    *(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES),
    "torch._dynamo.repro.after_dynamo", "torch._inductor.compile_fx", "accelerate", "deepspeed",
    "cryptography.hazmat.primitives.serialization.ssh", "fabric", "paramiko", "jsonschema", "rich.console",
]  # fmt: skip
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MEASURING = "bench.runner.processes.forkserver"  # the module whose forks measure
_MANY = 250  # open files; more cannot be sent in one message
_HIGH = 1000  # larger than the number of every open file that is passed on


SHARED = "BENCH_TESTS_SHARED"  # variable with the path of a folder that all processes of a session share
OWNER = "owner"  # file there: the process that ends last
_FOLDERS: list[Path] = []  # of the servers that this process uses


@cache
def _folder(packages: str = "", **environment: str) -> Path:
    """Return the folder of the session's server, or of one for this process alone; start it if need be."""
    if SHARED not in os.environ:
        folder = _start_server(os.getpid(), packages, environment)
    else:
        shared = Path(os.environ[SHARED])
        known = shared / f"warm-{_key(packages, environment)}"
        with (shared / "warm.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists():
                owner = int((shared / OWNER).read_text())
                known.write_text(str(_start_server(owner, packages, environment)))
        folder = Path(known.read_text())
    _FOLDERS.append(folder)
    return folder


def _key(packages: str, environment: Mapping[str, str]) -> str:
    """Name a server by what its processes have: packages, variables, file system, process numbers."""
    spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("mnt", "pid", "ipc")]
    variables = sorted(f"{name}={value}" for name, value in environment.items())
    parts = [str(ROOT), sys.executable, packages, *variables, *spaces]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _start_server(owner: int, packages: str, environment: Mapping[str, str]) -> Path:
    """Start a server, which ends when the process `owner` ends; return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="bench-warm-"))
    (folder / "asked").mkdir()
    signals = [*map(int, PASSED_ON)]
    asking = _ASKING.format(python=sys.executable, socket=str(folder / "socket"), signals=signals)
    (folder / "python3").write_text(asking)
    (folder / "python3").chmod(0o755)
    for program in Path(sys.executable).parent.iterdir():  # programs are looked for beside Python
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    # Threads do not survive a fork, so no import may start one. Starting compiler processes takes longer than
    # most compilations.
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    variables = os.environ | alone | {"DS_ACCELERATOR": "cpu"} | environment
    subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(folder), str(owner)],
        cwd=ROOT, env=variables | {"PYTHONPATH": f"{packages}:{ROOT}".strip(":")},
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until((folder / "socket").exists, "the server of tests/warm.py")
    return folder


def quick_python(packages: str = "", **environment: str) -> str:
    """Return the path of a Python that begins with modules imported.

    `packages` is a folder of more packages, and `environment` has more variables, for what is imported.
    """
    return str(_folder(packages, **environment) / "python3")


_BEGUN: set[str] = set()  # commands of bench that this process has started


def python_for(command: str) -> str:
    """Return the Python for a command of bench: an ordinary one at the first call, later a quick one."""
    if command in _BEGUN:
        return quick_python()
    _BEGUN.add(command)
    return sys.executable


def forked_for() -> dict[int, int]:
    """Map each forked process to the process that requested it and counts as its parent."""
    found = {}
    for folder in _FOLDERS:
        for path in (folder / "asked").iterdir():
            with suppress(OSError, ValueError):
                found[int(path.name)] = int(path.read_text())
    return found


_ASKING = """#!{python} -IS
import array, json, os, signal, socket, sys
files = [int(n) for n in os.listdir("/proc/self/fd")]
files = [n for n in files if os.path.exists(f"/proc/self/fd/{{n}}") and os.get_inheritable(n)]
words = sys.argv[1:]
if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c", "-u")):
    os.execv("{python}", ["{python}", *words])
ignored = [n for n in {signals} if signal.getsignal(n) == signal.SIG_IGN]
told = {{"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "files": files,
        "ignored": ignored, "asked_by": os.getpid(), "python": os.path.realpath(__file__)}}
umask = os.umask(0o22)
os.umask(umask)
told["umask"] = umask
signal.pthread_sigmask(signal.SIG_BLOCK, {signals})
with socket.socket(socket.AF_UNIX) as server:
    server.connect("{socket}")
    server.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
    server.sendall(json.dumps(told).encode() + b"\\n")
    answers = server.makefile()
    pid = int(answers.readline())
    for number in {signals}:
        if number not in ignored:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signals})
    for number in files:  # a reader at the other end would otherwise wait for this process
        if number > 2:
            os.close(number)
    status = int(answers.readline())
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


# --- the server -----------------------------------------------------------------------------------------


def serve(folder: Path, owner: int) -> None:
    watched = os.pidfd_open(owner)
    gc.disable()
    for name in AHEAD:
        import_module(name)
    _import_commands()
    _name_callers_quickly()
    for made in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        made.atexit = False  # torch would undo its registrations at the end of each fork, for 0.1 s
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps the processes that look after a fork
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "new"))
    listener.listen(100)
    (folder / "new").rename(folder / "socket")
    while watched not in (ready := select.select([listener, watched], [], [])[0]):
        if ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _look_after(connection, folder / "asked")
                os._exit(0)
            connection.close()
    shutil.rmtree(folder, ignore_errors=True)


_COMMANDS: dict[str, tuple[int, int]] = {}  # files of the imported modules of bench, with their stamps


def _import_commands() -> None:
    """Import bench's commands, which import no torch; note the files that were read."""
    commands = import_module("bench.cli")
    for found in pkgutil.iter_modules(commands.__path__, "bench.cli."):
        import_module(found.name)
    for name in _modules_of_bench():
        if (file := sys.modules[name].__file__) is not None:
            _COMMANDS[file] = _stamp(file)


def _modules_of_bench() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "bench"]


def _stamp(file: str) -> tuple[int, int]:
    status = os.stat(file)  # noqa: PTH116 - hundreds of files for each process
    return status.st_mtime_ns, status.st_size


def _may_keep_commands(words: Sequence[str], folder: Path, named: Sequence[str]) -> bool:
    """Would a process with these arguments run bench of this checkout, as it was when the server imported it?

    `folder` is its working folder, and `named` are the folders that its PYTHONPATH names.
    """
    program = words[1:] if words[0] == "-u" else words
    if program[0] != "-m" or program[1].partition(".")[0] != "bench":
        return False
    places = (place for place in (folder, *map(Path, named)) if (place / "bench/__init__.py").exists())
    if next(places, None) != ROOT:
        return False
    try:
        return all(_stamp(file) == stamp for file, stamp in _COMMANDS.items())
    except FileNotFoundError:
        return False


def _name_callers_quickly() -> None:
    """Let torch name the callers of its functions without looking for the source of each.

    Torchrun, for its debug log, and each registration of an operator ask the module `inspect`, which looks
    through all imported modules. With the thousands that are imported here, that took 1.3 of 1.8 processor
    seconds of each launch, and 0.15 of each fork server.
    """
    import torch._library.utils
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    def source(stacklevel: int) -> str:
        frame = sys._getframe(stacklevel)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    torch._library.utils.get_source = source
    dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def _look_after(connection: socket.socket, asked: Path) -> None:
    """Fork the requested process, and kill it when the requesting process ends."""
    data, files, _, _ = socket.recv_fds(connection, 1, _MANY)
    lines = connection.makefile("rb")
    told = json.loads(data + lines.readline())
    if (pid := os.fork()) == 0:
        _end(_become(told, files))
    for number in files:
        os.close(number)
    kept = asked / str(pid)
    kept.write_text(str(told["asked_by"]))
    with suppress(OSError):
        connection.sendall(b"%d\n" % pid)
    watched = os.pidfd_open(pid)
    if watched not in select.select([watched, connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    kept.unlink(missing_ok=True)
    with suppress(OSError):
        connection.sendall(b"%d\n" % status)


# --- the fork -------------------------------------------------------------------------------------------


def _become(told: dict[str, Any], files: Sequence[int]) -> int:
    """Run the request in this process as a new Python would; return the exit code."""
    os.setsid()
    _enter_namespaces(told["asked_by"])
    _take(files, told["files"])
    os.chdir(told["folder"])
    os.umask(told["umask"])
    os.environ.clear()
    os.environ.update(told["environment"])
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN if number in told["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in told["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = told["python"]
    named = [path for path in told["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [name for name in sys.modules if name.partition(".")[0] == "tests"]
    for name in own if _may_keep_commands(told["words"], Path.cwd(), named) else own + _modules_of_bench():
        del sys.modules[name]
    sys.path[:] = [*named, *(path for path in sys.path if Path(path) != ROOT)]
    gc.enable()
    return _code_of(lambda: _run(named, told["words"]))


def _enter_namespaces(pid: int) -> None:
    """Enter the network and the host name of a process, if they are not those of this machine."""
    import ctypes

    for kind in ("net", "uts"):
        theirs = Path(f"/proc/{pid}/ns/{kind}")
        if theirs.readlink() != Path(f"/proc/self/ns/{kind}").readlink():
            with theirs.open() as place:
                assert ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0) == 0, kind


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Take over the open files of the requesting process, with their numbers there; close all others."""
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, _HIGH) for number in files]
    os.closerange(0, _HIGH)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
    os.closerange(_HIGH, 2 * _HIGH)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def _run(named: Sequence[str], words: Sequence[str]) -> None:
    for custom in (Path(path, "sitecustomize.py") for path in named):
        if custom.exists():
            runpy.run_path(str(custom))
    first, *more = words[1:] if words[0] == "-u" else words
    if first == "-m":
        _module(*more)
    elif first == "-c":
        sys.argv[:] = ["-c", *more[1:]]
        sys.path.insert(0, "")
        exec(compile(more[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        _script(first, *more)


def _module(name: str, *arguments: str) -> None:
    sys.argv[:] = [name, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    if name == MEASURING:
        _measure_ceilings_with_small_matrices()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _measure_ceilings_with_small_matrices() -> None:
    """Let products and copies take milliseconds. On a CPU, these reach the rates of large ones."""
    ceilings: Any = import_module("bench.runner.trial.ceilings")
    ceilings._CPU_SHAPES = ceilings._CPU_HALF_SHAPES = ((256, 256, 256),)
    ceilings.COPIED_BYTES = ceilings.COPIED_BYTES | {"cpu": 16 << 20}


def _script(name: str, *arguments: str) -> None:
    sys.argv[:] = [name, *arguments]
    sys.path.insert(0, str(Path(name).resolve().parent))
    runpy.run_path(name, run_name="__main__")


def _code_of(program: Callable[[], None]) -> int:
    """Run a program; return the exit code that Python would end with, after printing message or traceback."""
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    with suppress(BaseException):
        atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))

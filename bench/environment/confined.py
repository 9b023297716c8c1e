"""The program that runs bench in an environment, with as few rights as a process can give itself.

    ENVIRONMENT/bin/python -S -P -m bench.environment.confined ENVIRONMENT [--data DIR]... -- ARGUMENTS

Started in the run's folder. It checks the environment, and becomes `python -m bench ARGUMENTS`, which

- can gain no rights (no_new_privs), has no capabilities, and leaves no core dump;
- cannot write to the kernel's settings in /proc, not even as root;
- where the kernel has Landlock: writes to out/ and tmp/ alone, and reads no home folder;
- has no variables of the login, besides those that `KEPT` and `HANDED_ON` name.

The run keeps what a container would take from it: the network, the login's user, the view of other processes.
It has no limits of memory and processes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.names import ENVIRONMENT_VARIABLE, VISIBLE
from bench.environment import landlock, store
from bench.environment.interpreter import BUNDLED, this_interpreter

# Variables of the login that the run keeps; run.sh sets those that name folders. Nodes that train together
# also keep those by which NCCL and gloo connect them.
KEPT = re.compile(
    "PATH|LANG|TZ|PYTHONPATH|PYTHONPYCACHEPREFIX|PYTHONDONTWRITEBYTECODE|TMPDIR|HOME|XDG_CACHE_HOME|XDG_CONFIG_HOME"
    f"|TRITON_CACHE_DIR|{VISIBLE}|SLURM_.*|BENCH_.*"
)
HANDED_ON = re.compile("NCCL_.*|GLOO_.*")
_NO_NEW_PRIVS, _DROP_CAPABILITY = 38, 24  # of prctl
_CAPABILITIES = 64  # for which the kernel's masks have room
# Folders below / that hold devices, homes and other users' files: only what the run needs there is allowed.
_PRIVATE = ("dev", "home", "root", "tmp")
# Devices that the run may open: those of every system, its own terminal, GPUs, and InfiniBand adapters. Other
# terminals of the user are not among them: reading one takes what is typed there.
_DEVICES = re.compile("null|zero|full|random|urandom|tty|nvidia.*|dri|kfd|infiniband")
# Flags of unshare and mount. Mounts that follow see the machine's changes and keep their own to themselves.
_UNSHARE_MOUNTS, _READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 0x20000, 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _FOLLOWING = 1 << 5, 1 << 12, 1 << 14, 1 << 19
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


def main(arguments: Sequence[str]) -> int:
    """Confine this process and replace it by bench; return an exit code if the environment was changed."""
    environment, options = Path(arguments[0]), list(arguments[1:])
    own, command = options[: options.index("--")], options[options.index("--") + 1 :]
    data = [Path(own[at + 1]) for at, word in enumerate(own) if word == "--data"]
    try:
        found = store.require_unchanged(environment, this_interpreter())
    except EnvironmentCannot as error:
        print(error, file=sys.stderr)
        return error.exit_code
    variables = dict(kept(os.environ)) | {"USER": "nobody"}
    confinement = list(confine(Path.cwd(), [environment, *(Path(each) for each in sys.path if each)], data))
    described = {
        name: getattr(found, name) for name in ("variant", "lock", "python", "build", "files", "without")
    }
    variables[ENVIRONMENT_VARIABLE] = json.dumps(described | {"confinement": confinement})
    return os.execve(sys.executable, [sys.executable, "-m", "bench", *command], variables)


def kept(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the run keeps.

    Of LD_LIBRARY_PATH they keep the folders that hold NVIDIA's driver, and that of the libraries which
    `bench push` brought with Python. Other folders there could replace the environment's own libraries.
    """
    together = "BENCH_TOGETHER" in variables
    for name, value in variables.items():
        if KEPT.fullmatch(name) or (together and HANDED_ON.fullmatch(name)):
            yield name, value
    folders = [each for each in variables.get("LD_LIBRARY_PATH", "").split(":") if each]
    own = str(Path(sys.base_prefix) / BUNDLED)
    if needed := [each for each in folders if each == own or _has_driver(Path(each))]:
        yield "LD_LIBRARY_PATH", ":".join(needed)


def _has_driver(folder: Path) -> bool:
    return any((folder / name).exists() for name in _DRIVER)


def confine(run: Path, code: Sequence[Path], data: Sequence[Path]) -> Iterator[str]:
    """Take rights from this process; yield the name of each measure that is in force."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    yield "no core dumps"
    if close_kernel_settings():
        yield "kernel settings read-only"
    prctl = ctypes.CDLL(None).prctl
    if prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        yield "no new privileges"
    dropped = [prctl(_DROP_CAPABILITY, number, 0, 0, 0) == 0 for number in range(_CAPABILITIES)]
    if os.geteuid() != 0 or any(dropped):  # of a user who is not root, no program has capabilities
        yield "no capabilities"
    if in_force := landlock.confine(rules(run, code, data)):
        yield f"Landlock {in_force}"


def close_kernel_settings() -> bool:
    """Make what is in /proc read-only for this process and its children, except the folders of processes.

    Return whether this was necessary and was done: root can write there, and root can mount unless it is in a
    container, where the engine has made these files read-only.
    """
    if not _kernel_settings_are_open():
        return False
    libc = ctypes.CDLL(None)
    if libc.unshare(_UNSHARE_MOUNTS) != 0:
        return False
    libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _FOLLOWING), None)
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() and not path.is_symlink():
            _mount_read_only(libc, path)
    return not _kernel_settings_are_open()


def _mount_read_only(libc: ctypes.CDLL, path: Path) -> None:
    name, flags = os.fsencode(path), _NO_SUID | _NO_DEVICES | _NO_EXECUTION
    if libc.mount(name, name, None, ctypes.c_ulong(_BIND | _RECURSIVE), None) == 0:
        libc.mount(None, name, None, ctypes.c_ulong(_REMOUNT | _BIND | _READ_ONLY | flags), None)


def _kernel_settings_are_open(root: Path = Path("/")) -> bool:
    return os.access(root / "proc/sys/kernel/core_pattern", os.W_OK)


def rules(
    run: Path, code: Sequence[Path], data: Sequence[Path], root: Path = Path("/")
) -> Iterator[tuple[Path, int]]:
    """Yield the rights of the run in the file system below `root`, by path."""
    for path in (
        *public(root), Path(sys.base_prefix), Path(sys.executable).resolve().parent, *code, *data, run,
    ):  # fmt: skip
        yield path, landlock.READ
    # From the device of a disk, which root may read without any capability, every file on it can be read.
    yield root / "dev", landlock.LIST
    for path in sorted((root / "dev").iterdir()):
        if _DEVICES.fullmatch(path.name):
            yield path, landlock.DEVICES
    # CUDA does not start unless it can name its threads there; a process resets its own peak of memory there.
    if not _kernel_settings_are_open(root):
        yield root / "proc", landlock.REWRITE
    for path in (root / "dev/shm", run / "out", run / "tmp"):
        yield path, landlock.WRITE


def public(root: Path) -> Iterator[Path]:
    """Yield what is directly below `root`, without devices, other users' files, and links to these."""
    private = {root / name for name in _PRIVATE}
    with suppress(RuntimeError):  # the user has no home
        private.add(root.joinpath(*Path.home().resolve().relative_to(root).parts[:1]))
    for path in sorted(root.iterdir()):
        if not private & {path, path.resolve()}:
            yield path


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

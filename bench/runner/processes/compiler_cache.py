"""Keep compiled code in a folder that one run has for itself, and that holds nothing half-made.

By default torch keeps compiled code in /tmp/torchinductor_USER, for all programs of a user. Another user can
create this folder first and put code there. A program that is killed while it compiles leaves half a library
there, on which later programs fail. Folders of this module belong to the user; one is locked while a run has
it, and emptied if a job was cut off. If the user's lasting folder cannot be used, a run makes one that ends
with it; a later run removes it if the run was killed, which released its lock.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from bench.base.operating_system import lock
from bench.base.paths import using
from bench.runner.machine.disk_room import ADVICE

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own, by which a user can choose a folder
_OF_ONE_RUN = "bench-compiled-run-"  # start of the names of folders that end with their run
_NOT_LOCKED_YET = "bench-compiled-new-"  # start of the name of such a folder before its run has locked it
_UNFINISHED = "unfinished"  # a file that exists while a job may be writing


class CompilerCache:
    """A folder of compiled code that is locked until `close`."""

    def __init__(self, folder: Path, locked: BinaryIO, removed: Path | None) -> None:
        """`removed` is a folder above that is of use for this run only, so that `close` removes it."""
        self.folder = folder
        self._locked = locked
        self._removed = removed
        self.folder.mkdir(exist_ok=True)
        if self._unfinished.exists():
            self._empty()

    def begin(self) -> None:
        """Note that a job begins; EnvironmentCannot if the folder is gone, or its disk is full or broken."""
        with self._keeping():
            self._unfinished.touch()

    def end(self, *, whole: bool) -> None:
        """Note that the job ended; `whole` is false if any of its processes may have been cut off.

        EnvironmentCannot if the folder cannot be emptied and made again.
        """
        with self._keeping():
            if not whole:
                self._empty()
            self._unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another run have the folder, which is emptied then if a job has begun and not ended."""
        self._locked.close()
        if self._removed is not None:
            shutil.rmtree(self._removed, ignore_errors=True)

    def _keeping(self) -> AbstractContextManager[None]:
        return using(self.folder, "compiled code cannot be kept", ADVICE)

    @property
    def _unfinished(self) -> Path:
        return self.folder / _UNFINISHED

    def _empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # a process that cannot be killed may still write
        self.folder.mkdir(exist_ok=True)


def take_cache() -> CompilerCache | None:
    """Return the first folder that no other run has; None if the environment names one."""
    if os.environ.get(VARIABLE):
        return None
    temporary = Path(tempfile.gettempdir())
    _remove_folders_of_killed_runs(temporary)
    with using(temporary, "compiled code cannot be kept", ADVICE):
        lasting = _own_folder(temporary)
        return _of_one_run(temporary) if lasting is None else _first_free(lasting)


def _first_free(root: Path) -> CompilerCache:
    for number in count():
        locked = (root / f"{number}.lock").open("ab")
        try:
            lock(locked, wait=False)
        except BlockingIOError:
            locked.close()
            continue
        return CompilerCache(root / str(number), locked, None)
    raise AssertionError("there is always another number")


def _of_one_run(temporary: Path) -> CompilerCache:
    """Make a folder for this run. It gets its name once it is locked, so that no other run removes it."""
    made = Path(tempfile.mkdtemp(prefix=_NOT_LOCKED_YET, dir=temporary))
    locked = (made / "0.lock").open("ab")
    lock(locked, wait=False)
    root = made.rename(made.with_name(_OF_ONE_RUN + made.name.removeprefix(_NOT_LOCKED_YET)))
    return CompilerCache(root / "0", locked, root)


def _remove_folders_of_killed_runs(temporary: Path) -> None:
    """Remove this user's folders of single runs that no process has locked; follow no link."""
    for root in temporary.glob(f"{_OF_ONE_RUN}*"):
        with suppress(OSError):  # in use, or another run removes it
            if _is_own(root):
                with (root / "0.lock").open("rb") as locked:
                    lock(locked, wait=False)
                    shutil.rmtree(root, ignore_errors=True)


def _own_folder(temporary: Path) -> Path | None:
    """Return the folder of this user for all runs; None if its name leads to what others can write to."""
    folder = temporary / f"bench-compiled-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return folder if _is_own(folder) else None
    return folder


def _is_own(folder: Path) -> bool:
    """Whether a path is a folder, and no link to one, that only this user can read and write."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

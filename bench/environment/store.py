"""The environments of a node: found by digest, made whole or not at all, checked before use.

PLACE/environments/DIGEST/          read-only
    bin/python                      a link to the node's Python
    lib/python3.11/site-packages/   the files of the wheels
    pyvenv.cfg                      makes Python import packages of this environment only
    environment.json                the parts of the digest, and a stamp of every file's inode and times
PLACE/environments/.new-*           an environment that is being made, or copies for it
PLACE/environments/.lock            held by the installation that makes an environment
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.base.stamps import file_sha256, sha256
from bench.environment.identity import InstalledFile, environment_digest, tree_digest
from bench.environment.interpreter import Interpreter
from bench.environment.unpack import CopiedPackage, unpack

DESCRIPTION = "environment.json"
PUSH_AGAIN = "push again: the push installs it again"


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    """An environment on a node, as its file environment.json describes it."""

    variant: str
    lock: str  # sha256 of the lock file, as sha256:...
    pins: str  # sha256 of the requested packages: those of the lock, except kernels that were left out
    python: str  # release
    build: str  # sha256 of the interpreter
    files: str  # sha256 of the tree of files
    without: tuple[str, ...]  # packages of the lock that were left out
    stamp: str  # of every file's inode, size and times

    @property
    def digest(self) -> str:
        """The environment's identity, sha256:..., from the digests of its parts."""
        return environment_digest(self.lock, self.python, self.build, self.files)


def folder_of(environments: Path, digest: str) -> Path:
    """Return the folder of the environment with this digest."""
    return environments / digest.removeprefix("sha256:")


def read(folder: Path) -> StoredEnvironment:
    """Read the description of an environment; EnvironmentCannot if the folder holds none."""
    try:
        fields = json.loads((folder / DESCRIPTION).read_bytes())
        return StoredEnvironment(**fields | {"without": tuple(fields["without"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EnvironmentCannot(
            f"is not an environment: {type(error).__name__}", where=str(folder), advice=PUSH_AGAIN
        ) from None


def find(environments: Path, pins: str, python: Interpreter) -> StoredEnvironment | None:
    """Return an unchanged environment of these packages and this Python; None if there is none."""
    for path in sorted(environments.glob("[0-9a-f]*")):
        with suppress(EnvironmentCannot):
            found = read(path)
            if found.pins == pins and path == folder_of(environments, found.digest):
                return require_unchanged(path, python)
    return None


def require_unchanged(folder: Path, python: Interpreter) -> StoredEnvironment:
    """Refuse an environment whose files or Python are not those of its digest; return its description.

    The files are hashed again only if an inode, a size or a time differs from when the environment was made.
    """
    found = read(folder)
    if (found.python, found.build) != (python.release, python.build):
        raise EnvironmentCannot(
            f"it is for another Python {found.python}", where=str(folder), advice=PUSH_AGAIN
        )
    if _stamp(folder) == found.stamp:
        return found
    if not _starts(folder, python) or tree_digest(_hashed(folder)) != found.files:
        raise EnvironmentCannot("its files were changed", where=str(folder), advice=PUSH_AGAIN)
    return found


@contextmanager
def one_at_a_time(environments: Path, wait: Callable[[], object]) -> Iterator[None]:
    """Hold the folder's lock, so that one installation runs at a time; call `wait` if another one runs now.

    Remains of installations that were killed are deleted. The lock ends with the process that holds it.
    """
    environments.mkdir(parents=True, exist_ok=True)
    with (environments / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in environments.glob(".new-*"):
            remove(stale)
        yield


def make(
    environments: Path,
    wheels: Mapping[str, Path],
    copied: Mapping[str, CopiedPackage],
    python: Interpreter,
    described: Mapping[str, Any],
    advance: Callable[[int], object],
) -> StoredEnvironment:
    """Make an environment from wheels and copied packages, both given by project.

    The environment is made under a temporary name, and renamed to its digest when it is whole. `described`
    has the fields variant, lock, pins and without of its description.
    """
    try:
        with scratch(environments) as new:
            site = f"lib/python{python.text}/site-packages"
            (new / site).mkdir(parents=True)
            (new / "bin").mkdir()
            files = unpack(wheels, copied, site, new, advance)
            (new / "bin/python").symlink_to(python.executable)
            (new / "pyvenv.cfg").write_text(_configuration(python))
            _close(new)
            made = StoredEnvironment(
                **described,
                python=python.release,
                build=python.build,
                files=tree_digest(files),
                stamp=_stamp(new),
            )
            (new / DESCRIPTION).write_text(json.dumps(asdict(made), sort_keys=True, indent=1))
            (new / DESCRIPTION).chmod(0o444)
            target = folder_of(environments, made.digest)
            if target.exists():  # a changed environment: `find` would have returned an unchanged one
                remove(target)
            new.rename(target)
            target.chmod(0o555)
            return made
    except OSError as error:
        raise EnvironmentCannot(
            f"the environment cannot be written: {error.strerror}", where=str(environments)
        ) from None


def _configuration(python: Interpreter) -> str:
    """Return the text of pyvenv.cfg."""
    return (
        f"home = {python.executable.parent}\n"
        f"include-system-site-packages = false\n"
        f"version = {python.release}\n"
    )


def _starts(folder: Path, python: Interpreter) -> bool:
    """Tell whether an environment starts this Python, and with its own packages alone."""
    configuration = folder / "pyvenv.cfg"
    try:
        link, text = (folder / "bin/python").readlink(), configuration.read_text()
    except (OSError, ValueError):
        return False
    own = link == python.executable and text == _configuration(python)
    return own and not configuration.is_symlink()


@contextmanager
def scratch(environments: Path) -> Iterator[Path]:
    """Yield a folder on the file system of environments, which is deleted again."""
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=environments))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Delete an environment, whose folders are read-only, if it is there."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(path).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _close(folder: Path) -> None:
    """Make pyvenv.cfg and all folders below a folder read-only; the files of wheels are read-only already."""
    (folder / "pyvenv.cfg").chmod(0o444)
    for path, _, _ in os.walk(folder, topdown=False):
        if Path(path) != folder:
            Path(path).chmod(0o555)


def _stamp(folder: Path) -> str:
    """Return a sha256 over the inode, size, mode and times of every file, and of every folder inside."""
    lines = []
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            each = os.path.join(path, name)  # noqa: PTH118 (pathlib takes three times as long)
            if name == DESCRIPTION and path == str(folder):
                continue
            now = os.lstat(each)
            lines.append(
                f"{each[len(str(folder)) :]} {now.st_ino} {now.st_size} {now.st_mode} "
                f"{now.st_mtime_ns} {now.st_ctime_ns}"
            )
    return sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape"))


def _hashed(folder: Path) -> list[InstalledFile]:
    """Hash everything in an environment, except the files that `make` adds itself."""
    own = {folder / DESCRIPTION, folder / "pyvenv.cfg", folder / "bin/python"}
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda path: _hash(path, folder), (p for p in _inside(folder) if p not in own)))


def _inside(folder: Path) -> Iterator[Path]:
    """Yield all that Python could import from below a folder: files, links, and folders without a file."""
    for path, folders, files in os.walk(folder):
        links = [name for name in folders if Path(path, name).is_symlink()]
        yield from (Path(path, name) for name in (*files, *links))
        if not folders and not files:
            yield Path(path)


def _hash(path: Path, folder: Path) -> InstalledFile:
    name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
    if stat.S_ISREG(mode):
        return InstalledFile(name, file_sha256(path), bool(mode & stat.S_IXUSR))
    kind = f"a link to {path.readlink()}" if stat.S_ISLNK(mode) else f"no file, of mode {mode:o}"
    return InstalledFile(name, kind, executable=False)

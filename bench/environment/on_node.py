"""The program that `bench push` starts on a node, with the node's own Python, to install an environment.

    python -m bench.environment.on_node plan|install  <request  >lines

In:  a request as JSON on stdin. Out: lines of JSON on stdout: {"at": ...} while it works, and as the last one
{"plan": ...}, {"installed": ...}, {"refused": ...} or {"error": ...}. Passwords of pip's configuration are
never printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.environment import adopt, store
from bench.environment.contents import LockedPackage
from bench.environment.interpreter import Interpreter, this_interpreter
from bench.environment.unpack import CopiedPackage, unpacked_bytes
from bench.environment.wheel_tags import misfit, rank, read_name
from bench.packages.download import WantedFile, fetch_all, measured_rate
from bench.packages.errors import CannotDownload
from bench.packages.package_index import OfferedFile, PackageIndex
from bench.packages.pip_settings import masked, read_settings

_PAGES_AT_ONCE = 16
_ABSENT = "the index does not have it"
_SAY_SECONDS = 0.5  # between two lines about progress


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """An environment to install: its packages, and its place."""

    place: Path  # folder for bench on the node
    variant: str
    lock: str
    pins: str  # sha256 of the packages
    packages: tuple[LockedPackage, ...]
    without: tuple[str, ...]
    index: str | None  # an index to use in place of those of pip's configuration
    sent: Mapping[str, str]  # digests of wheels that the operator has sent, by project

    @property
    def environments(self) -> Path:
        """Folder of all environments on this node."""
        return self.place / "environments"

    @property
    def blobs(self) -> Path:
        """Folder of wheels that were sent or downloaded, named by their sha256."""
        return self.place / "blobs"


@dataclass(frozen=True, slots=True)
class _Offers:
    """The files of locked packages that the indexes of this node offer."""

    wanted: Mapping[str, WantedFile]  # by project
    lacking: Mapping[str, str]  # by project: why no index offers a fitting file
    sizes: Mapping[str, int]

    @property
    def largest_first(self) -> Sequence[WantedFile]:
        """The files to download, the largest first, so that none of them is alone at the end."""
        return sorted(self.wanted.values(), key=lambda file: -self.sizes.get(file.name, 0))


def main(verb: str) -> int:
    """Do what `verb` says, "plan" or "install", for the request on stdin; return an exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a broken connection must not leave a half-made environment
    try:
        request = read_request(json.load(sys.stdin))
        answer = {"plan": plan, "install": install}[verb](request)
    except (EnvironmentCannot, CannotDownload) as error:
        where = f"{error.where}: " if error.where else ""
        _say({"error": {"message": masked(f"{where}{error.message}"), "advice": error.advice}})
        return EnvironmentCannot.exit_code
    _say(answer)
    return 0


def read_request(fields: Mapping[str, Any]) -> InstallRequest:
    """Decode the request that `bench push` sends as JSON."""
    packages = (
        LockedPackage(name, version, frozenset(found), frozenset(contents))
        for name, version, found, contents in fields["packages"]
    )
    return InstallRequest(
        **{
            **fields,
            "place": Path(fields["place"]),
            "packages": tuple(packages),
            "without": tuple(fields["without"]),
        }
    )


def plan(request: InstallRequest) -> dict[str, Any]:
    """Say whether the environment is here; if not, which packages are, or can be downloaded, and how fast."""
    python = this_interpreter()
    require_executable(request.place)
    require_library("libstdc++.so.6")
    found = store.find(request.environments, request.pins, python)
    facts = {"python": python.release, "version": python.text, "glibc": list(python.glibc)}
    if found is not None:
        return {"plan": facts | {"found": _described(found)}}
    held, differing = _held(request)
    index = PackageIndex(read_settings(os.environ, Path.home(), request.index or ""))
    offers = _offers([each for each in request.packages if each.name not in held], index, python)
    largest = offers.largest_first
    rate = measured_rate(next(iter(largest[0].offers)), index) if largest else None
    return {
        "plan": facts
        | {
            "found": None,
            "here": {name: package.bytes for name, package in held.items()},
            "differing": differing,
            "sizes": dict(offers.sizes),
            "lacking": dict(offers.lacking),
            "troubles": list(index.troubles),
            "index_rate": rate,
            "free_bytes": shutil.disk_usage(_existing(request.place)).free,
        }
    }


def _held(request: InstallRequest) -> tuple[dict[str, adopt.HeldPackage], dict[str, str]]:
    """Find packages of this machine's own Pythons; those that were sent are not looked for."""
    wanted = [each for each in request.packages if each.name not in request.sent]
    return adopt.find(wanted, adopt.folders_of_packages(os.environ.get("PATH", "")))


def _offers(packages: Sequence[LockedPackage], index: PackageIndex, python: Interpreter) -> _Offers:
    """Look up every package in the indexes, several at a time."""
    wanted: dict[str, WantedFile] = {}
    lacking: dict[str, str] = {}
    sizes: dict[str, int] = {}

    def look_up(package: LockedPackage) -> None:
        offers, why = fitting(package, index.files(package.name), python)
        if not offers:
            lacking[package.name] = why
            return
        wanted[package.name] = WantedFile(package.name, package.sha256, tuple(offers))
        if size := index.size(offers[0]):
            sizes[package.name] = size

    with ThreadPoolExecutor(_PAGES_AT_ONCE) as pool:
        list(pool.map(look_up, packages))
    if index.troubles:  # an index that does not answer may have what was not found
        lacking = {name: index.troubles[0] if why == _ABSENT else why for name, why in lacking.items()}
    return _Offers(wanted, lacking, sizes)


def fitting(
    package: LockedPackage, files: Sequence[OfferedFile], python: Interpreter
) -> tuple[list[OfferedFile], str]:
    """Return the offered files that the lock accepts and that fit the Python, or else the reason.

    A file whose digest the index does not state is accepted by its name here, and by its bytes later.
    """
    accepted, reasons, has_others = [], [], False
    for file in files:
        name = read_name(file.name)
        if name is None or name.version.lower() != package.version.lower():
            continue
        if file.sha256 is not None and file.sha256 not in package.sha256:
            has_others = True
        elif (why := misfit(file.name, python)) is None:
            accepted.append(file)
        else:
            reasons.append(why)
    if accepted:
        return sorted(accepted, key=lambda file: (file.sha256 is None, rank(file.name, python))), ""
    if glibc := [why for why in reasons if "glibc" in why]:
        return [], glibc[0]
    if reasons:
        return [], f"no wheel of it is for Python {python.text}"
    return [], "the index has it with other digests than the lock's" if has_others else _ABSENT


def require_executable(place: Path) -> None:
    """Refuse a folder on a file system that is mounted noexec: libraries could not be loaded from it."""
    existing = _existing(place)
    if os.statvfs(existing).f_flag & os.ST_NOEXEC:
        raise EnvironmentCannot(
            "its file system is mounted noexec, and no library can be loaded from it",
            where=str(place),
            advice="choose a folder on another file system: --place DIR",
        )


def require_library(name: str) -> None:
    """Refuse a machine without a shared library that wheels count on: they have all but a few of theirs."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise EnvironmentCannot(
            f"its {name}, which PyTorch needs, cannot be loaded: {error}",
            advice="apt-get install libstdc++6 on the node, or dnf install libstdc++",
        ) from None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _described(made: store.StoredEnvironment) -> dict[str, Any]:
    return {name: value for name, value in asdict(made).items() if name not in ("stamp", "pins")} | {
        "digest": made.digest
    }


def install(request: InstallRequest) -> dict[str, Any]:
    """Install the environment, or say which wheels were refused.

    Packages come from wheels that were sent, from this machine's own Pythons, and from the indexes. The
    answer names the wheels, which are not deleted: only the caller knows whether other pushes need them.
    """
    python, wheels = this_interpreter(), dict[str, Path]()
    require_executable(request.place)
    with store.one_at_a_time(request.environments, lambda: _say({"at": "another push installs it; waiting"})):
        found = store.find(request.environments, request.pins, python)
        if found is None:
            with store.scratch(request.environments) as folder:
                copied, differing = _copied(request, folder)
                wheels, refused = _wheels(request, copied.keys(), python)
                if refused:
                    return {
                        "refused": {name: _refusal(name, why, differing) for name, why in refused.items()}
                    }
                found = _make(request, wheels, copied, python)
    return {"installed": _described(found), "wheels": [path.name for path in wheels.values()]}


def _copied(request: InstallRequest, folder: Path) -> tuple[dict[str, CopiedPackage], dict[str, str]]:
    """Copy the packages that are here; return the copies, and why packages that are here differ."""
    held, differing = _held(request)
    total = sum(package.bytes for package in held.values())
    _require_room(folder, total, "the packages that are copied")
    progress = _Progress("copying", total)
    copied, changed = adopt.copy_all(held, request.packages, folder, progress.advance)
    progress.end()
    return copied, {**differing, **changed}


def _refusal(name: str, why: str, differing: Mapping[str, str]) -> str:
    return f"{why}; in the node's own Python: {differing[name]}" if name in differing else why


def _wheels(
    request: InstallRequest, copied: Container[str], python: Interpreter
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the wheels of all packages that are not copied, and by project why packages have no wheel."""
    request.blobs.mkdir(parents=True, exist_ok=True)
    sent = {name: request.blobs / digest for name, digest in request.sent.items()}
    here = {name: path for name, path in sent.items() if path.exists()}
    index = PackageIndex(read_settings(os.environ, Path.home(), request.index or ""))
    rest = [each for each in request.packages if each.name not in here and each.name not in copied]
    if not rest:
        return here, {}
    offers = _offers(rest, index, python)
    total = sum(offers.sizes.values())
    _require_room(request.blobs, total, "the wheels")
    progress = _Progress("downloading", total)
    paths, refused = fetch_all(offers.largest_first, index, request.blobs, progress.advance)
    progress.end()
    return here | dict(paths), {**offers.lacking, **refused}


def _make(
    request: InstallRequest,
    wheels: Mapping[str, Path],
    copied: Mapping[str, CopiedPackage],
    python: Interpreter,
) -> store.StoredEnvironment:
    total = unpacked_bytes(wheels)
    _require_room(request.environments, total, "the environment")
    progress = _Progress("installing", total)
    described = {
        "variant": request.variant,
        "lock": request.lock,
        "pins": request.pins,
        "without": request.without,
    }
    made = store.make(request.environments, wheels, copied, python, described, progress.advance)
    progress.end()
    return made


def _require_room(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentCannot(
            f"{free / 1e6:,.0f} MB are free, {what} will take {needed / 1e6:,.0f} MB",
            where=str(folder),
            advice="free some space on the node, or choose another disk: --place DIR",
        )


class _Progress:
    """Says twice a second how many bytes are done; `advance` may be called by many threads."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._lock, self._next = threading.Lock(), 0.0

    def advance(self, count: int) -> None:
        """Count bytes that are done, and print a line if the last one is half a second old."""
        with self._lock:
            self._done += count
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _SAY_SECONDS
                self._tell()

    def end(self) -> None:
        """Print a last line, whenever the one before was."""
        self._tell()

    def _tell(self) -> None:
        _say({"at": self._what, "done": self._done, "total": max(self._total, self._done)})


def _say(answer: Mapping[str, Any]) -> None:
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:  # the connection is lost: the installation goes on, and the next push finds it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

"""Install a locked environment on a node, from the node's own package index and from wheels sent by SSH.

    plan     the node says what it has, in its own Python too, what its index has, and how fast both are
    send     wheels that the node cannot download, or only more slowly than they can be sent
    install  the node copies what its own Python has, downloads the rest, and makes the environment

The node's part is bench/environment, which travels with bench's code. Every wheel is accepted by its digest,
and a package of the node's own Python by the digest of its files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.paths import cache_path
from bench.base.sizes import size_text
from bench.base.stamps import file_sha256, is_sha256
from bench.base.strict_json import canonical_json, from_json, strict_loads
from bench.environment.identity import environment_digest
from bench.environment.interpreter import Interpreter
from bench.images.archive import Blob
from bench.images.fetch import accepted_files, wheels
from bench.push.answers import absolute_path, json_fields, short, understood
from bench.push.connection import plain
from bench.push.forecast import Forecast
from bench.push.line_rate import measured_rate
from bench.push.locked_environment import LockedEnvironment, fits
from bench.push.remote import Node
from bench.push.run_script import environment_folder
from bench.push.send_blobs import Progress, send_all
from bench.push.shared_place import ClaimedNode, PlaceClaim, claimed
from bench.records.text import seconds_text

_PLAN_SECONDS = 300.0  # for a node to ask its index for every package
_INSTALL_SECONDS = 900.0  # longest silence of an installation
_MOST_ANSWER_BYTES = 2**22
_FAST_INDEX = 12.5e6  # bytes per second of a node's line to its index, from which on ours is not measured
_UNPACKED = 4.0  # bytes of an environment for each byte of its wheels; 3.8 for the CPU's lock
_UNPACK_BYTES_PER_SECOND = 60e6  # of an environment, on one core
_COPY_BYTES_PER_SECOND = 400e6  # of packages that are there: copied and hashed, on one core
_FASTER = 2.0  # by how much the operator's line must be the faster one to be used for everything
_RELEASE = re.compile(r"3\.[0-9]{1,2}\.[0-9]{1,3}[a-z0-9+]{0,12}")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment on a node."""

    digest: str
    sent_bytes: int = 0
    changed: bool = False


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """A node's answer: the packages that it has or can download itself."""

    found: Installed | None
    python: Interpreter
    sizes: Mapping[str, int]  # bytes of the wheels that its index has, by package
    lacking: Mapping[str, str]  # why the others cannot be had there
    troubles: tuple[str, ...]  # of its indexes
    index_rate: float | None  # bytes per second
    free_bytes: int
    here: Mapping[str, int] = field(default_factory=dict)  # bytes of packages in its own Python, by name
    differing: Mapping[str, str] = field(default_factory=dict)  # why others that are there cannot be used


@dataclass(frozen=True, slots=True)
class Shipment:
    """The packages to send over the operator's line, and why."""

    packages: tuple[str, ...]
    why: str
    rate: float | None = None  # bytes per second of the operator's line; None: not measured yet


@dataclass(frozen=True, slots=True)
class PlannedInstall:
    """An environment that can be installed on a node, and which of its wheels are sent there."""

    plan: InstallPlan
    shipment: Shipment


@dataclass(frozen=True, slots=True)
class EnvironmentInstaller:
    """Installs a locked environment on a node: `ask` the node for its plan first, then `install` that."""

    node: Node
    place: str
    code: str  # folder of bench's code on the node
    python: str  # path of Python on the node
    locked: LockedEnvironment
    index: str | None
    wheelhouse: Path | None
    say: Callable[[str], None]
    progress: Progress
    libraries: str | None = None  # folder on the node of Python's shared libraries, if it was brought there

    def ask(self) -> PlannedInstall:
        """Ask the node for its plan, and measure the line from this machine to the node if it is needed."""
        plan = self._plan()
        if plan.found is not None:
            return PlannedInstall(plan, Shipment((), ""))
        shipment = choose(plan, self.locked, lambda: measured_rate(self.node))
        if shipment.packages and shipment.rate is None:
            shipment = replace(shipment, rate=measured_rate(self.node))
        sent, downloaded = split_bytes(plan, shipment, self.locked)
        check_room(plan, sent + downloaded, self.place)
        return PlannedInstall(plan, shipment)

    def install(self, planned: PlannedInstall, node: ClaimedNode) -> Installed:
        """Bring the environment to the node, whose place is claimed, unless it is there."""
        planned = self._still_there(planned, node)
        plan, shipment = planned.plan, planned.shipment
        if plan.found is not None:
            return plan.found
        sent: dict[str, str] = {}
        count = self._send(plan, shipment, sent, node) if shipment.packages else 0
        installed, refused = self._install(sent, node)
        if installed is None:
            for name, why in sorted(refused.items())[:5]:
                self.say(f"refused: {name}: {why}")
            retry = Shipment(tuple(sorted(refused)), next(iter(refused.values())))
            count += self._send(plan, retry, sent, node)
            installed, refused = self._install(sent, node)
        if installed is None:
            name, why = next(iter(sorted(refused.items())))
            raise EnvironmentCannot(f"the node cannot install {name}: {why}")
        return Installed(installed.digest, count, changed=True)

    def _still_there(self, planned: PlannedInstall, node: Node) -> PlannedInstall:
        """Return the plan, or a new one if the environment that it counts on has been removed since."""
        found = planned.plan.found
        if found is None:
            return planned
        folder = shlex.quote(environment_folder(self.place, found.digest))
        return self.ask() if node.ask(f"test -d {folder}").code else planned

    def _plan(self) -> InstallPlan:
        """Ask the node for its plan, which changes nothing there."""
        answer = self.node.ask(
            self._command("plan"), [self._request({})], seconds=_PLAN_SECONDS, most_bytes=_MOST_ANSWER_BYTES
        )
        return read_plan(self._last(answer.text, answer.reason), self.locked)

    def _command(self, verb: str) -> str:
        program = f"{shlex.quote(self.python)} -P -s -B -m bench.environment.on_node {verb}"
        bundled = f"LD_LIBRARY_PATH={shlex.quote(self.libraries)} " if self.libraries else ""
        return f"cd / && umask 022 && {bundled}PYTHONPATH={shlex.quote(self.code)} {program}"

    def _request(self, sent: Mapping[str, str]) -> bytes:
        locked = self.locked
        return canonical_json(
            {
                "place": self.place,
                "variant": locked.variant.name,
                "lock": locked.lock,
                "pins": locked.pins,
                "packages": [
                    [pin.name, pin.version, sorted(pin.sha256), locked.contents(pin.name)]
                    for pin in locked.packages.values()
                ],
                "without": list(locked.without),
                "index": self.index,
                "sent": dict(sent),
            }
        )

    def _last(self, text: str, reason: str) -> dict[str, Any]:
        """Return the last line that the node's program printed; EnvironmentCannot for an error there."""
        lines = text.strip().splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise EnvironmentCannot(f"the node's Python cannot install an environment: {reason}")
        with understood("the node does not answer as bench's program does"):
            found = strict_loads(lines[-1])
            if not isinstance(found, dict):
                raise ValueError("not an object")
            if error := json_fields(found, {"error": dict}).get("error"):
                answer = json_fields(error, {"message": str, "advice": str})
                advice = plain(short(answer["advice"], 400)) if "advice" in answer else None
                raise EnvironmentCannot(plain(short(answer["message"], 600)), advice=advice)
            return found

    def _send(self, plan: InstallPlan, shipment: Shipment, sent: dict[str, str], node: ClaimedNode) -> int:
        """Announce the time and send wheels; add their digests to `sent`, and return the bytes."""
        paths = self._wheels_here(plan, shipment)
        digests = {name: file_sha256(path) for name, path in paths.items()}
        total = sum(path.stat().st_size for path in paths.values())
        rate = shipment.rate or measured_rate(self.node)
        downloaded = sum(size for name, size in plan.sizes.items() if name not in paths)
        check_room(plan, total + downloaded, self.place)
        what = f"{len(paths)} of {len(self.locked.packages)} wheels, {size_text(total)}"
        speed = f"about {seconds_text(total / rate)} at {8 * rate / 1e6:.3g} Mbit/s"
        self.say(f"{what}, are sent over this line ({shipment.why}): {speed}")
        blobs = [
            Blob(path, f"sha256:{digests[name]}", f"sha256:{digests[name]}", compressed=True)
            for name, path in sorted(paths.items())
        ]
        count = send_all(node, self.place, blobs, self.progress)
        sent |= digests
        return count

    def _wheels_here(self, plan: InstallPlan, shipment: Shipment) -> Mapping[str, Path]:
        """Return the wheels of a shipment, from --wheelhouse, bench's cache, or this machine's index."""
        pins = {name: self.locked.packages[name] for name in shipment.packages}

        def fitting(name: str) -> bool:
            return fits(plan.python, name)

        held = accepted_files(self.wheelhouse, pins, fitting) if self.wheelhouse else {}
        rest = [pin for name, pin in pins.items() if name not in held]
        if not rest:
            return held
        cache = cache_path("images/wheels")
        minor = plan.python.glibc[1]
        try:
            return {**held, **wheels(rest, cache, plan.python.text, newest_glibc=minor, fits=fitting)}
        except EnvironmentCannot as error:
            first = rest[0].name
            why = plan.lacking.get(first, shipment.why)
            raise EnvironmentCannot(
                f"neither the node nor this machine can get {first} {self.locked.packages[first].version}: "
                f"the node: {why}; here: {error.message}",
                advice="name an index that has it: --index URL; or a folder of wheels here: --wheelhouse DIR",
            ) from None

    def _install(
        self, sent: Mapping[str, str], node: ClaimedNode
    ) -> tuple[Installed | None, Mapping[str, str]]:
        """Let the node install; return the environment, or the packages that it lacks, with reasons."""
        request = self._request(sent)
        staging = shlex.quote(f"{self.place}/{node.claim.staging}")
        answer = node.ask(f"umask 077; mkdir -p {staging}; cat >{staging}/request", [request])
        if answer.code:
            raise EnvironmentCannot(f"writing failed: {answer.reason}", where=self.place)
        reader = _ProgressReader(self.progress)
        script = f"({self._command('install')}) <{staging}/request"
        done = node.read(script, reader.take, seconds=_INSTALL_SECONDS)
        found = self._last(reader.text, done.reason)
        with understood("the node does not answer as bench's program does"):
            if refused := json_fields(found, {"refused": dict}).get("refused"):
                known = {name: plain(short(str(why))) for name, why in refused.items()}
                if not known.keys() <= self.locked.packages.keys():
                    raise ValueError("names packages that are not in the lock")
                return None, known
            installed = _read_installed(found["installed"], self.locked)
            node.ask(node.claim.discard(f"blobs/{each}" for each in {*sent.values(), *_read_wheels(found)}))
            return installed, {}


class _ProgressReader:
    """Keeps the last line of an installation's output, and passes the progress in the others on."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._rest, self._count = progress, b"", 0
        self.text = ""

    def take(self, data: bytes) -> None:
        """Take a piece of the output; EnvironmentCannot if all pieces together are too large."""
        self._count += len(data)
        if self._count > _MOST_ANSWER_BYTES:
            raise EnvironmentCannot(f"its answer is larger than {_MOST_ANSWER_BYTES:,} bytes")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.text = line.decode(errors="replace")
            with suppress(ValueError, LookupError, TypeError):
                at = json.loads(line)
                self._progress(int(at["done"]), int(at["total"]))


def choose(plan: InstallPlan, locked: LockedEnvironment, rate_here: Callable[[], float]) -> Shipment:
    """Return the wheels to send over the operator's line: those that the node cannot download.

    If this line is clearly faster than the node's line to its index, all wheels that the node lacks are sent.
    `rate_here` measures this line.
    """
    lacking = tuple(sorted(plan.lacking))
    wanted = tuple(sorted(locked.packages.keys() - plan.here.keys()))
    there = plan.index_rate
    if lacking == wanted or there is None or there >= _FAST_INDEX:
        return Shipment(lacking, _reason(plan))
    here = rate_here()
    if here <= _FASTER * there:
        return Shipment(lacking, _reason(plan), here)
    slow = f"the node's own line to its index gives {8 * there / 1e6:.1f} Mbit/s"
    return Shipment(wanted, slow, here)


def _reason(plan: InstallPlan) -> str:
    if plan.troubles:
        return f"the node cannot download: {plan.troubles[0]}"
    name = next(iter(sorted(plan.lacking)), "")
    return f"{name}: {plan.lacking[name]}" if name else ""


def split_bytes(plan: InstallPlan, shipment: Shipment, locked: LockedEnvironment) -> tuple[int, int]:
    """Return the bytes that are sent and downloaded; unknown sizes are estimated from the whole lock."""
    sizes = {**locked.sizes(plan.python), **plan.sizes}
    unknown = (
        max(0, locked.variant.wheel_bytes - sum(sizes.values())) if plan.lacking.keys() - sizes.keys() else 0
    )
    sent = unknown + sum(sizes.get(name, 0) for name in shipment.packages)
    downloaded = sum(size for name, size in plan.sizes.items() if name not in shipment.packages)
    return sent, downloaded


def forecast(planned: PlannedInstall, locked: LockedEnvironment) -> Forecast:
    """Return how long an installation takes."""
    plan, what = planned.plan, f"the environment {locked.variant.name} with Python {planned.plan.python.text}"
    if plan.found is not None:
        return Forecast(what=what)
    sent, downloaded = split_bytes(plan, planned.shipment, locked)
    return Forecast(
        what=what + here_text(plan, locked),
        send_bytes=sent,
        download_bytes=downloaded,
        up_bytes_per_second=planned.shipment.rate,
        down_bytes_per_second=plan.index_rate,
        install_seconds=_UNPACKED * (sent + downloaded) / _UNPACK_BYTES_PER_SECOND
        + sum(plan.here.values()) / _COPY_BYTES_PER_SECOND,
        why_sent=planned.shipment.why,
    )


def here_text(plan: InstallPlan, locked: LockedEnvironment) -> str:
    """Say which part of an environment the node's own Python has; empty if it has none of its packages."""
    if not (plan.here or plan.differing):
        return ""
    size = f", {size_text(sum(plan.here.values()))}," if plan.here else ""
    others = f", {len(plan.differing)} in another version or changed" if plan.differing else ""
    return f" ({len(plan.here)} of {len(locked.packages)} packages{size} are there already{others})"


@contextmanager
def folder_of_code(node: Node, claim: PlaceClaim, code: tuple[str, bytes]) -> Iterator[str]:
    """Yield a folder of the node with bench's code: one of an earlier push, or one that is deleted again."""
    digest, data = code
    kept = f"{claim.place}/code/{digest[:16]}"
    there = f"test -d {shlex.quote(kept)}"
    if not node.ask(there).code:
        with claimed(node, claim):
            if not node.ask(there).code:  # still, now that it cannot be deleted any more
                yield kept
                return
    make = 'd=$(mktemp -d "$t/bench-ask.XXXXXX" 2>/dev/null) && break'  # in the first folder that it may
    script = (
        f'd=; for t in "${{TMPDIR:-/tmp}}" /dev/shm "$HOME"; do {make}; done; '
        '[ "$d" ] || { echo "not in ${TMPDIR:-/tmp}, /dev/shm or $HOME" >&2; exit 1; }; '
        'tar -xzf - -C "$d" && echo "$d"'
    )
    answer = node.ask(script, [data])
    if answer.code:
        raise EnvironmentCannot(
            f"no folder for temporary files can be written: {answer.reason}",
            advice="set TMPDIR in the login's environment to one, or free some space",
        )
    with understood("the node does not answer as mktemp does"):
        folder = absolute_path(answer.text.strip())
    try:
        yield folder
    finally:
        with suppress(BenchError):
            node.ask(f"rm -rf {shlex.quote(folder)}")


def check_room(plan: InstallPlan, wheel_bytes: int, place: str) -> None:
    """Refuse a disk that cannot hold the wheels, the environment that is made of them, and what is copied."""
    needed = int(wheel_bytes * (1 + _UNPACKED)) + sum(plan.here.values())
    if plan.free_bytes < needed:
        raise EnvironmentCannot(
            f"{size_text(plan.free_bytes)} are free, the environment and its wheels need {size_text(needed)}",
            where=place,
            advice="free some space on the node, or choose another disk: --place DIR",
        )


def read_plan(answer: Mapping[str, Any], locked: LockedEnvironment) -> InstallPlan:
    """Parse the node's plan; EnvironmentCannot for anything that bench's program does not print."""
    with understood("the node does not answer as bench's program does"):
        kinds: dict[str, type] = {
            "python": str, "version": str, "glibc": list, "found": dict, "sizes": dict, "lacking": dict,
            "troubles": list, "free_bytes": int, "here": dict, "differing": dict,
        }  # fmt: skip
        fields = json_fields(answer["plan"], kinds)
        major, minor = (int(part) for part in fields["version"].split("."))
        glibc = (int(fields["glibc"][0]), int(fields["glibc"][1]))
        python = Interpreter(Path(), (major, minor), short(fields["python"]), "", glibc)
        found = _read_installed(fields["found"], locked) if "found" in fields else None
        rate = answer["plan"].get("index_rate")
        sizes = {name: _count(size) for name, size in fields.get("sizes", {}).items()}
        here = {name: _count(size) for name, size in fields.get("here", {}).items()}
        lacking, differing = (
            {name: plain(short(str(why))) for name, why in fields.get(kind, {}).items()}
            for kind in ("lacking", "differing")
        )
        if not {*sizes, *lacking, *here, *differing} <= locked.packages.keys():
            raise ValueError("names packages that are not in the lock")
        return InstallPlan(
            found=found,
            python=python,
            sizes=sizes,
            lacking=lacking,
            troubles=tuple(plain(short(str(each))) for each in fields.get("troubles", ())[:20]),
            index_rate=float(rate) if isinstance(rate, int | float) and rate > 0 else None,
            free_bytes=fields.get("free_bytes", 0),
            here=here,
            differing=differing,
        )


def _read_wheels(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests of the wheels from which an environment was made."""
    digests = from_json(tuple[str, ...], found.get("wheels", []))
    if not all(map(is_sha256, digests)):
        raise ValueError("not a sha256")
    return digests


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**50:
        raise ValueError("not a size")
    return value


def _read_installed(fields: Any, locked: LockedEnvironment) -> Installed:
    """Parse an environment's description; its digest must follow from its parts, its lock must be ours."""
    kinds = dict.fromkeys(("lock", "python", "build", "files", "digest"), str)
    described = json_fields(fields, kinds)
    if not (is_sha256(described["build"]) and is_sha256(described["files"])):
        raise ValueError("not a sha256")
    if not _RELEASE.fullmatch(described["python"]) or described["lock"] != locked.lock:
        raise ValueError("not the environment that was asked for")
    expected = environment_digest(
        described["lock"], described["python"], described["build"], described["files"]
    )
    if described["digest"] != expected:
        raise ValueError("not the digest of its parts")
    return Installed(expected)

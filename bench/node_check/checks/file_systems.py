"""Measure the named file systems: writing and reading in sequence, and small random reads.

fio measures if it is installed in a version whose JSON is understood; otherwise Python does, past the page
cache if the file system allows that. The test file has no name, so that the kernel removes it however the
process ends. It never takes more than a quarter of the free space.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import short_line
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, quantity, verdict_of
from bench.node_check.judging.standards import FileSystemRates, Standards

BYTES = {"quick": 1 << 30, "standard": 4 << 30, "soak": 8 << 30}
TINY_BYTES = 16 << 20
BLOCK_BYTES, RANDOM_BYTES = 1 << 20, 4 << 10
AT_ONCE = 16  # requests that wait for their answers at the same time
FREE_SHARE = 4  # the file takes at most the free space divided by this
LEAST_BYTES = 8 << 20  # of the file
LEAST_RANDOM_SECONDS = 1.0  # of random reads by Python
KINDS = ("write", "read", "random read")
# A checkpoint of a small model would take a minute below the first; below the second, a disk with moving
# parts answers, and data loaders that shuffle single samples wait.
SLOW = {"write": 100e6, "read": 100e6, "random read": 1000.0 * RANDOM_BYTES}
SPARE_SECONDS = 20.0  # that fio may take beyond its --runtime


@dataclass(frozen=True, slots=True)
class MeasuredFileSystem:
    """A folder on a file system, and the way of its measurement; its rates are the reading's figures."""

    path: str
    kind: str = ""  # ext4, lustre
    free_bytes: int = 0
    file_bytes: int = 0
    tool: str = ""  # fio-3.33, or Python
    direct: bool = False  # past the page cache
    late_seconds: float | None = None  # within which 99% of the random reads were answered
    why_not_fio: str = ""
    why: str = ""  # why nothing, or not everything, was measured


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """One kind of load: its bytes, its seconds, and the 99th percentile of its answers if it is known."""

    kind: str
    moved_bytes: int
    seconds: float
    late_seconds: float | None = None


class _FioUnusableError(Exception):
    """fio is missing, fails, or answers in an unknown form."""


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Measure each folder of the budget; one that fails says so in its own entry."""
    measured = [_measured(path, budget) for path in budget.file_systems]
    figures = [figure for _, figures in measured for figure in figures]
    return {"figures": to_json(figures), "file_systems": to_json([disk for disk, _ in measured])}


def figure_name(path: str, kind: str) -> str:
    """Return the name of the figure of one kind of load on one folder."""
    return f"disk {path} {kind}"


def _measured(path: str, budget: CheckBudget) -> tuple[MeasuredFileSystem, list[Figure]]:
    """Measure one folder; a failure is recorded in the entry of that folder alone."""
    wanted = TINY_BYTES if budget.tiny else BYTES[budget.depth]
    kind = file_system_of(path, Path("/proc/self/mounts"))
    free = size = 0
    try:
        free = shutil.disk_usage(path).free
        size = min(wanted, free // FREE_SHARE) // BLOCK_BYTES * BLOCK_BYTES
        if size < LEAST_BYTES:
            why = f"{free >> 20} MiB are free: a quarter of them is too little to measure with"
            return MeasuredFileSystem(path, kind, free, why=why), []
        descriptor = nameless_file(path)
    except OSError as error:
        return MeasuredFileSystem(path, kind, free, why=f"{path}: {error.strerror}"), []
    try:
        return _of_file(MeasuredFileSystem(path, kind, free, size), descriptor, budget.seconds)
    finally:
        os.close(descriptor)


def _of_file(
    disk: MeasuredFileSystem, descriptor: int, seconds: float
) -> tuple[MeasuredFileSystem, list[Figure]]:
    """Measure with fio, else with Python. If the disk fills up meanwhile, earlier figures are kept."""
    facts: dict[str, Any] = {}
    transfers: list[MovedBytes] = []
    try:
        transfers, facts = by_fio(descriptor, disk.file_bytes, seconds)
    except _FioUnusableError as error:
        facts = {"tool": "Python", "why_not_fio": short_line(str(error)), "direct": allows_direct(descriptor)}
        try:
            for transfer in by_python(descriptor, disk.file_bytes, seconds):
                transfers.append(transfer)
        except OSError as failed:
            facts["why"] = f"{disk.path}: {failed.strerror}"
    late = next((transfer.late_seconds for transfer in transfers if transfer.late_seconds), None)
    done = MeasuredFileSystem(
        disk.path, disk.kind, disk.free_bytes, disk.file_bytes, late_seconds=late, **facts
    )
    figures = [
        Figure(
            figure_name(disk.path, t.kind), None, "B/s", float(t.moved_bytes), (t.seconds,), f"disk {t.kind}"
        )
        for t in transfers
        if t.moved_bytes and t.seconds > 0
    ]
    return done, figures


def nameless_file(folder: str) -> int:
    """Open a file without a name in a folder, so that nothing can leave it behind."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # NFS and some overlays: the name exists for a moment
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="bench-disk-")
        Path(name).unlink()
        return descriptor


def file_system_of(path: str, mounts: Path) -> str:
    """Return the type of the file system that a folder is on; empty if it is unknown."""
    best, kind = "", ""
    with suppress(OSError):
        real = os.path.realpath(path)
        for line in mounts.read_text("utf-8", "replace").splitlines():
            parts = line.split(" ")
            if len(parts) < 3:
                continue
            at = parts[1].replace("\\040", " ")
            if len(at) >= len(best) and f"{real}/".startswith(f"{at.rstrip('/')}/"):
                best, kind = at, short_line(parts[2])
    return kind


def allows_direct(descriptor: int) -> bool:
    """Whether the file can be opened past the page cache."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def by_fio(descriptor: int, size: int, seconds: float) -> tuple[list[MovedBytes], dict[str, Any]]:
    """Measure the three kinds of load with fio, one after the other; _FioUnusableError if fio cannot."""
    found = shutil.which("fio")
    if found is None:
        raise _FioUnusableError("fio is not installed")
    direct = allows_direct(descriptor)
    transfers, version = [], ""
    os.truncate(descriptor, size)  # fio would unlink a shorter file and make another one of its name
    for kind in KINDS:
        document = _fio(found, descriptor, size, seconds, kind, direct=direct)
        transfers.append(transfer_of(document, kind))
        version = str(document.get("fio version", "fio"))
        # Bytes that were not written in time are a hole, which would be read without the disk.
        size = transfers[0].moved_bytes // BLOCK_BYTES * BLOCK_BYTES
    return transfers, {"tool": short_line(version), "direct": direct}


def _fio(program: str, descriptor: int, size: int, seconds: float, kind: str, *, direct: bool) -> Any:
    in_sequence = kind != "random read"
    words = [
        program, f"--name={kind.replace(' ', '-')}", f"--filename=/proc/self/fd/{descriptor}",
        f"--rw={'randread' if kind == 'random read' else kind}", f"--size={size}",
        f"--bs={BLOCK_BYTES if in_sequence else RANDOM_BYTES}", "--ioengine=libaio", f"--iodepth={AT_ONCE}",
        f"--direct={int(direct)}", f"--runtime={max(1, round(4 * seconds))}", "--output-format=json",
        "--end_fsync=1", "--allow_file_create=0", "--invalidate=1", "--randrepeat=0", "--fallocate=none",
        *([] if in_sequence else ["--time_based=1"]),
    ]  # fmt: skip
    limit = 4 * seconds + SPARE_SECONDS
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[descriptor],
            timeout=limit,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise _FioUnusableError(f"fio took more than {limit:g} s") from None
    except OSError as error:
        raise _FioUnusableError(f"fio: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise _FioUnusableError(f"fio ended with exit code {done.returncode}: {said[-1]}")
    text = done.stdout.decode("utf-8", "replace")
    try:
        return json.loads(text[text.index("{") :])  # some versions print warnings before their JSON
    except ValueError:
        raise _FioUnusableError("fio printed no JSON") from None


def transfer_of(document: Any, kind: str) -> MovedBytes:
    """Read the result of one job from fio's JSON; _FioUnusableError for the form of versions before 3."""
    try:
        job = document["jobs"][0]
        part = job["write" if kind == "write" else "read"]
        if job["error"]:
            raise _FioUnusableError(f"fio: error {int(job['error'])}")
        late = part["clat_ns"].get("percentile", {}).get("99.000000")
        moved, milliseconds = part["io_bytes"], part["runtime"]
        return MovedBytes(
            kind, int(moved), milliseconds / 1e3, late / 1e9 if kind == "random read" and late else None
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        version = document.get("fio version") if isinstance(document, dict) else None
        raise _FioUnusableError(f"{version or 'fio'} answers in another form than fio 3") from None


def by_python(
    descriptor: int,
    size: int,
    seconds: float,
    kinds: Sequence[str] = KINDS,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[MovedBytes]:
    """Measure kinds of load, of which "write" is the first, by threads of this process.

    Bypasses the page cache where the file system can, and ends each kind after four times a figure's time.
    """
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    flags = os.O_RDWR | (os.O_DIRECT if allows_direct(descriptor) else 0)
    opened = os.open(f"/proc/self/fd/{descriptor}", flags)
    try:
        first = _in_sequence(opened, size, seconds, block_bytes, writing=True)
        yield first
        written = first.moved_bytes  # the rest of the file is a hole
        for kind in kinds[1:]:
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)  # for file systems without O_DIRECT
            if kind == "read":
                yield _in_sequence(opened, written, seconds, block_bytes, writing=False)
            else:
                yield _at_random(opened, written, seconds)
    finally:
        os.close(opened)


def _block(size: int) -> mmap.mmap:
    """Return memory that begins at a page, as O_DIRECT requires, with random bytes."""
    block = mmap.mmap(-1, size)
    block.write(os.urandom(size))
    return block


def _in_sequence(opened: int, size: int, seconds: float, block_bytes: int, *, writing: bool) -> MovedBytes:
    """Write or read from the beginning on; stop after four times a figure's time."""
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    block = _block(block_bytes)
    done, started = 0, time.perf_counter()
    while done < size and time.perf_counter() - started < 4 * seconds:
        moved = os.pwritev(opened, [block], done) if writing else os.preadv(opened, [block], done)
        if moved == 0:
            break
        done += moved
    if writing:
        os.fsync(opened)
    return MovedBytes("write" if writing else "read", done, time.perf_counter() - started)


def _at_random(opened: int, size: int, seconds: float) -> MovedBytes:
    """Read small pieces at random places, several at once."""
    deadline = time.perf_counter() + max(LEAST_RANDOM_SECONDS, 4 * seconds)
    answers: list[list[float]] = [[] for _ in range(AT_ONCE)]
    reading = partial(_read_pieces, opened, size // RANDOM_BYTES, deadline)
    started = time.perf_counter()
    _in_threads([partial(reading, own) for own in answers])
    lasted = time.perf_counter() - started
    every = sorted(answer for own in answers for answer in own)
    late = every[min(len(every) - 1, len(every) * 99 // 100)] if every else None
    return MovedBytes("random read", len(every) * RANDOM_BYTES, lasted, late)


def _read_pieces(opened: int, pieces: int, deadline: float, answers: list[float]) -> None:
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    block = _block(mmap.PAGESIZE)
    places = random.Random()
    now = time.perf_counter()
    while pieces and now < deadline:
        os.preadv(opened, [memoryview(block)[:RANDOM_BYTES]], places.randrange(pieces) * RANDOM_BYTES)
        before, now = now, time.perf_counter()
        answers.append(now - before)


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Do all works at once. OSError if one of them fails."""
    failed: list[OSError] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail a rate below the owner's expectation, and warn of one below SLOW where there is none."""
    data = evidence.data("file-systems")
    if data is None:
        return
    measured = from_json(tuple[MeasuredFileSystem, ...], data["file_systems"])
    if not measured:
        yield Question("file-systems").unread(
            "no file system was named", counts=False, advice="--disk PATH, or disks in the manifest"
        )
    figures = {figure.name: figure for figure in evidence.figures("file-systems")}
    for disk in measured:
        if disk.why:
            advice = "name a folder that can be written to, on a file system with free space"
            yield Question("file-systems", disk.path).unread(disk.why, advice=advice)
        expected = (standards.expect.disks or {}).get(disk.path)
        for kind in KINDS:
            if figure := figures.get(figure_name(disk.path, kind)):
                yield _rate(disk, kind, figure, expected)


def _rate(disk: MeasuredFileSystem, kind: str, figure: Figure, expected: FileSystemRates | None) -> Finding:
    least = expected.least(kind, RANDOM_BYTES) if expected else None
    limit = SLOW[kind] if least is None else least
    return Question("file-systems", f"{disk.path} {kind}", figure=figure.name, unit="B/s").judged(
        verdict_of(fail=least is not None and figure.rate < limit, warn=figure.rate < limit),
        f"{_words(kind, figure.rate)}{_late(disk, kind)}, by {disk.tool} on {disk.kind or 'an unknown type'}"
        f"{'' if disk.direct else ', through the page cache'}",
        expected=f"at least {_words(kind, limit)}",
        source="bench" if least is None else "the manifest",
        advice="something else uses this file system, or its servers or its network are slow",
        value=figure.rate,
        reference=limit,
    )


def _words(kind: str, rate: float) -> str:
    return f"{rate / RANDOM_BYTES:,.0f} reads/s" if kind == "random read" else quantity(rate, "B/s")


def _late(disk: MeasuredFileSystem, kind: str) -> str:
    if kind != "random read" or disk.late_seconds is None:
        return ""
    return f", 99% within {disk.late_seconds * 1e3:.3g} ms"


CHECK = Check(
    "file-systems",
    "are the named file systems fast?",
    judge,
    measure,
    torch=False,
    limit_seconds=200,
    blames="node",
    has_older_bundles=True,
)

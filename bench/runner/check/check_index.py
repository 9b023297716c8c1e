"""The index of a folder's node checks: history.jsonl, with one line for each bundle that was ever seen there.

A line has what later checks are compared with, so that a bundle can be deleted and is not read again. It ends
with a checksum: a damaged line is left out, and its bundle, if it still exists, is read again. A line is
appended with a lock held, so that several checks may write at once; readers need no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any
from zlib import crc32

from bench.base.files import open_regular, replacing
from bench.base.strict_json import DecodeError, canonical_json, from_json, to_json
from bench.node_check.judging import Depth
from bench.node_check.judging.finding import State, Verdict

FILE_NAME = "history.jsonl"
LOCK_NAME = ".history.lock"
CHANGE_LOCK_NAME = ".change.lock"  # held while the command of --on-change runs: two must not cross
MAX_BYTES = 64 * 2**20  # of the file: 108,000 checks of eight GPUs, more than a year's at one in five minutes
KEPT_SHARE = 0.75  # of MAX_BYTES, when the oldest lines are removed
MAX_LINE_BYTES = 2**20
TAIL_BYTES = 2**18  # of the file, in which the state last reported to a command is looked for
# Numbers of lines that are decoded: of the newest checks without load, and of the newest with figures.
DECODED = 1000
_BEGIN, _NAME_END, _CHECKSUM_BYTES = b'{"bundle":"', b'","', len(b',"crc32":"00000000"}\n')
_MEASURED, _OF_A_CHECK = b'"figures":{"', b'"verdict":"'


@dataclass(frozen=True, slots=True)
class IndexedCheck:
    """The entry of the index about one node check."""

    bundle: str  # its file's name
    run: str
    ended_at: float
    level: Depth
    verdict: Verdict
    finding: str  # the most serious one; empty if the node passed
    simulated: bool
    remapped_rows: Mapping[str, int | None]  # of each GPU, by UUID; None if it does not report them
    figures: Mapping[str, Mapping[str, float]]  # rates by UUID and name, without those that failed
    machine: str = ""  # its digest; empty if unknown
    corrected_errors: int | None = None  # of its memory; None: nothing counts them
    told: State | None = None  # the state last reported to --on-change; None: it was not given


@dataclass(frozen=True, slots=True)
class UnusableBundle:
    """A bundle that is not a node check, or does not verify: it is not read again."""

    bundle: str
    unusable: str  # why


Entry = IndexedCheck | UnusableBundle


@dataclass(frozen=True, slots=True)
class CheckIndex:
    """The content of an index."""

    checks: tuple[IndexedCheck, ...] = ()  # the newest, in the order of their lines
    bundles: Mapping[str, bool] = field(default_factory=dict)  # those in the folder: whether each is a check
    damaged: int = 0  # lines


def read_index(folder: Path) -> CheckIndex:
    """Read the index of a folder; an empty one if there is none."""
    path = folder / FILE_NAME
    if not path.exists():
        return CheckIndex()
    names = {json.dumps(bundle.name)[1:-1].encode(): bundle.name for bundle in folder.glob("*.tar")}
    bundles: dict[str, bool] = {}
    damaged = 0
    newest: dict[bool, deque[tuple[int, bytes]]] = {kind: deque(maxlen=DECODED) for kind in (True, False)}
    for number, line in enumerate(_lines(path)):
        if not _is_intact(line):
            damaged += 1
            continue
        is_check = _OF_A_CHECK in line
        if is_check:
            newest[_MEASURED in line].append((number, line))
        if (name := line[len(_BEGIN) : line.find(_NAME_END)]) in names:
            bundles[names[name]] = is_check
    decoded = (_decoded(line) for _, line in sorted([*newest[True], *newest[False]]))
    return CheckIndex(tuple(check for check in decoded if check is not None), bundles, damaged)


def last_told(folder: Path) -> State | None:
    """Return the state last reported to the command of --on-change, from the index; None if there is none."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).splitlines(keepends=True)
    checks = (_decoded(line) for line in reversed(lines) if _OF_A_CHECK in line and _is_intact(line))
    return next((check.told for check in checks if check is not None and check.told is not None), None)


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path, advice="remove it: it is written again from the bundles") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _is_intact(line: bytes) -> bool:
    """Whether a line has the checksum of its content."""
    end = len(line) - _CHECKSUM_BYTES
    return line.startswith(_BEGIN) and line[end:] == _checksum(line[:end])


def _checksum(body: bytes) -> bytes:
    return b',"crc32":"%08x"}\n' % crc32(body)


def _decoded(line: bytes) -> IndexedCheck | None:
    """Decode a line; None for one of another version of bench, which stays in the file."""
    try:
        document = json.loads(line[:-_CHECKSUM_BYTES] + b"}", object_pairs_hook=_with_shared_keys)
        return from_json(IndexedCheck, document)
    except (DecodeError, ValueError):
        return None


def _with_shared_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are in memory once for all lines: GPUs' UUIDs are two thirds of a line."""
    return {intern(key): value for key, value in pairs}


def _line(entry: Entry) -> bytes:
    body = canonical_json(to_json(entry))[:-1]
    return body + _checksum(body)


def add(folder: Path, entries: Sequence[Entry], *, repair: bool = False) -> None:
    """Append entries to the index of a folder; `repair` also removes damaged lines.

    The oldest lines are removed once the file has MAX_BYTES.
    """
    path = folder / FILE_NAME
    with locked(folder / LOCK_NAME):
        if path.exists() and (repair or path.stat().st_size > MAX_BYTES):
            _rewrite(path)
        # O_NOFOLLOW: a check that runs as root must not append to whatever file a symbolic link names.
        opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(opened, "ab+") as file:
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a writer died within a line
            file.write(b"\n" * torn + b"".join(map(_line, entries)))
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold a lock on a file of its own: the index itself is replaced when it is rewritten."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _rewrite(path: Path) -> None:
    """Write the index again with its intact lines alone, and without the oldest if it is too large."""
    excess = path.stat().st_size - MAX_BYTES
    dropped = excess + MAX_BYTES * (1 - KEPT_SHARE) if excess > 0 else 0.0
    with replacing(path) as temporary, temporary.open("wb") as file:
        for line in _lines(path):
            if dropped > 0:
                dropped -= len(line)
            elif _is_intact(line):
                file.write(line)
        file.flush()
        os.fsync(file.fileno())

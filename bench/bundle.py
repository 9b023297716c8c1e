"""The bundle: a tar that has one form only. What is not in that form is refused, never repaired.

The writer makes one sequence of bytes from the same files. The reader accepts a header only if it is
what the writer would have written for that name and size: this one comparison refuses links, devices,
sparse files, extensions and every flipped byte of a header. Nothing is ever unpacked to the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bench.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.signing import Predicate, Signer, build_statement, sign

STATEMENT = "statement.json"
SIGNATURE = "statement.json.sig"
SIGNING = frozenset({STATEMENT, SIGNATURE})

# What the statement speaks of, and whether a bundle must have it. A new kind of file is a new row here.
PAYLOAD: Mapping[str, bool] = {
    "manifest.json": True,
    "results.json": True,
    "samples.jsonl": True,
    "telemetry.jsonl": False,
    "env.json": False,
    "sbom.cdx.json": False,
}
_LOG = re.compile(r"logs/[a-z0-9][a-z0-9._-]*\.txt")

MAX_MEMBERS = 10_000
MAX_MEMBER_BYTES = 64 * 2**20  # what a verifier may have to hold in memory at once
MAX_TOTAL_BYTES = 2**30

# Lower-case ASCII only, so that no two names collide on a disk that folds case or normalises Unicode.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?")
_NAME_BYTES = 100
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_CHUNK = 2**18
_FOREIGN = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    **dict.fromkeys((b"3", b"4"), "a device"),
    b"5": "a directory",
    b"6": "a named pipe",
    **dict.fromkeys((b"x", b"g"), "a pax extension"),
    **dict.fromkeys((b"K", b"L"), "a GNU extension"),
    b"S": "a sparse file",
}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"\xfd7": "xz", b"BZ": "bzip2", b"PK": "zip"}


class Member(NamedTuple):
    name: str
    size: int
    offset: int  # of its first byte in the bundle


def payload_fault(names: Iterable[str]) -> str | None:
    """What is wrong with these names as the payload of a bundle."""
    present = set(names)
    for name, needed in PAYLOAD.items():
        if needed and name not in present:
            return f"{name} is missing"
    strangers = sorted(n for n in present if n not in PAYLOAD and not _LOG.fullmatch(n))
    return f"{strangers[0]:.100} is no file of a bundle" if strangers else None


def pack(path: Path, files: Mapping[str, bytes | Path], predicate: Predicate, key: Signer) -> None:
    """Writes the signed bundle of these payload files, given as bytes or as files on the disk."""
    if fault := payload_fault(files):
        raise BadInput(fault, where=str(path))
    statement = build_statement({name: _sha256(_chunks(source)) for name, source in files.items()}, predicate)
    write_bundle(path, {**files, STATEMENT: statement, SIGNATURE: sign(statement, key)})


def write_bundle(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """The tar of these files, whole or not at all: the same files always make the same bytes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as out:
            _write_members(out, files)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        message = f"the bundle cannot be written: {error.strerror}"
        raise EnvironmentCannot(message, where=str(path)) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_members(out: BinaryIO, files: Mapping[str, bytes | Path]) -> None:
    rules = _Rules()
    for name, source in sorted(files.items()):
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if fault := rules.fault(name, size):
            raise BadInput(f"no bundle can hold this: {fault}")
        out.write(_header(name, size))
        if sum(out.write(chunk) for chunk in _chunks(source)) != size:
            raise EnvironmentCannot("changed while it was packed; pack again", where=str(source))
        out.write(bytes(-size % _BLOCK))
    out.write(_ZEROS * 2)


def _chunks(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    try:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise EnvironmentCannot(f"cannot be read: {error.strerror}", where=str(source)) from None


def _sha256(chunks: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for chunk in chunks:
        total.update(chunk)
    return total.hexdigest()


def _sync_directory(directory: Path) -> None:
    with suppress(OSError):  # some file systems sync no directories; the bundle itself is on the disk
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _header(name: str, size: int) -> bytes:
    """The one ustar header that a member may have: mode 0644, no owner, no time, a regular file."""
    head = name.encode().ljust(_NAME_BYTES, b"\0")
    head += b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (0o644, 0, 0, size, 0)
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    checksum = sum(head) + sum(b" " * 8) + sum(tail)
    return head + b"%06o\0 " % checksum + tail


class _Rules:
    """What the members of one bundle may be; the writer and the reader ask the same ones."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._last = ""
        self._total = 0

    def fault(self, name: str, size: int) -> str | None:
        """Why this member may not come next; otherwise it counts as having come."""
        if not _NAME.fullmatch(name) or len(name) > _NAME_BYTES:
            return f"the name {name[:120]!r} is not of the allowed form"
        if name <= self._last:
            return f"{name} stands twice" if name == self._last else f"{name} stands after {self._last}"
        if name.partition("/")[0] in self._names:
            return f"{name} lies in a directory that is a file too"
        if size > MAX_MEMBER_BYTES:
            return f"{name} has {size} bytes; a member has at most {MAX_MEMBER_BYTES}"
        if self._total + size > MAX_TOTAL_BYTES:
            return f"the members have more than {MAX_TOTAL_BYTES} bytes in all"
        if len(self._names) == MAX_MEMBERS:
            return f"there are more than {MAX_MEMBERS} members"
        self._names.add(name)
        self._last = name
        self._total += size
        return None


class Bundle:
    """An open bundle of which every header and every byte of padding has been checked.

    The members' own bytes have not: that takes the signed digests, and is the business of bench.verify.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self.members: Mapping[str, Member] = {m.name: m for m in self._walk()}

    def digest(self, name: str) -> str:
        """The sha256 of a member of any size, in bounded memory."""
        return _sha256(self.chunks(name))

    def read(self, name: str, limit: int) -> bytes:
        """A member's bytes, if there are at most `limit` of them."""
        size = self._member(name).size
        if size > limit:
            raise VerificationFailed(f"has {size} bytes; at most {limit} of it are read", where=name)
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """A member's bytes, piece by piece. One member at a time: they share one file position."""
        member = self._member(name)
        self._file.seek(member.offset)
        left = member.size
        while left:
            chunk = self._exactly(min(left, _CHUNK))
            left -= len(chunk)
            yield chunk

    def _member(self, name: str) -> Member:
        if name not in self.members:
            raise VerificationFailed("is missing in the bundle", where=name)
        return self.members[name]

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise VerificationFailed("the file ends too early: it is truncated, or no bundle")
        return data

    def _walk(self) -> Iterator[Member]:
        rules = _Rules()
        self._file.seek(0)
        while (block := self._exactly(_BLOCK)) != _ZEROS:
            name, size = _parse_header(block)
            if fault := rules.fault(name, size):
                raise VerificationFailed(fault)
            member = Member(name, size, self._file.tell())
            self._skip(member)
            yield member
        if self._exactly(_BLOCK) != _ZEROS or self._file.tell() != self.size:
            raise VerificationFailed("something follows the end of the last member")

    def _skip(self, member: Member) -> None:
        end = member.offset + member.size
        padding = -member.size % _BLOCK
        if end + padding + 2 * _BLOCK > self.size:
            raise VerificationFailed("the file ends too early: it is truncated", where=member.name)
        self._file.seek(end)
        if self._exactly(padding) != bytes(padding):
            raise VerificationFailed("is followed by padding that is not zero", where=member.name)


def _parse_header(block: bytes) -> tuple[str, int]:
    name = block[:_NAME_BYTES].partition(b"\0")[0].decode("latin-1")
    digits = block[124:135]
    size = 0 if digits.strip(b"01234567") else int(digits, 8)
    # Only a name of the allowed form is encoded again; any other cannot have been ours.
    if not _NAME.fullmatch(name) or block != _header(name, size):
        raise VerificationFailed(_what_else(block, name))
    return name, size


def _what_else(block: bytes, name: str) -> str:
    if packer := _COMPRESSED.get(block[:2]):
        return f"is compressed by {packer}; a bundle is a plain tar: decompress it first"
    if block[257:262] != b"ustar":
        return "is no bundle, or a damaged one"
    if kind := _FOREIGN.get(block[156:157]):
        return f"holds {kind}; a bundle holds regular files only"
    if not _NAME.fullmatch(name):
        return f"the name {name!r} is not of the allowed form"
    return f"the header of {name} is not as bench writes it"


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """The bundle at this path. BadInput if no file lies there, VerificationFailed if it is no bundle.

    What is found wrong with it while it is open is told with the path in front.
    """
    with open_regular(path) as file:
        try:
            yield Bundle(file)
        except VerificationFailed as error:
            where = f"{path}: {error.where}" if error.where else str(path)
            raise VerificationFailed(error.message, where=where, advice=error.advice) from None
        except OSError as error:
            raise EnvironmentCannot(f"cannot be read: {error.strerror}", where=str(path)) from None


def open_regular(path: Path, *, advice: str | None = None) -> BinaryIO:
    """A regular file, for reading; BadInput for all else, and no waiting on a named pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", error)
        raise BadInput(f"cannot be opened: {reason}", where=str(path), advice=advice) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput("is no regular file", where=str(path), advice=advice)
    return os.fdopen(descriptor, "rb")

"""The container of a bundle: a tar with exactly one form. Any other form is refused, never repaired.

The writer makes one sequence of bytes from the same files. The reader accepts a header only if the writer
would have written the same one for that name and size: this one comparison refuses links, devices, sparse
files, extensions and every flipped byte of a header. Nothing is unpacked to the disk. Format: docs/bundle.md.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.base.files import open_regular

STATEMENT = "statement.json"
SIGNATURE = "statement.json.sig"
ENVELOPE = "statement.dsse.json"
CERTIFICATE = "run-cert.pub"
RECEIPT = "receipt.json"
RECEIPT_SIGNATURE = "receipt.json.sig"
# Files that the statement does not list, since they are made from the statement.
SIGNING = frozenset({STATEMENT, SIGNATURE, ENVELOPE, CERTIFICATE, RECEIPT, RECEIPT_SIGNATURE})

# Files that the statement lists, and whether a bundle must have them. A new kind of file is a new row.
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
MAX_MEMBER_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 2**30
# Largest files that a verifier reads in one piece. All others it reads in blocks or line by line.
MAX_WHOLE_BYTES: Mapping[str, int] = {
    "manifest.json": 4 * 2**20,
    "results.json": 8 * 2**20,
    STATEMENT: 4 * 2**20,
    ENVELOPE: 6 * 2**20,
    **dict.fromkeys((SIGNATURE, CERTIFICATE, RECEIPT, RECEIPT_SIGNATURE), 4 * 2**10),
}
MAX_LINE_BYTES = 8 * 2**20
MAX_LINES = 100_000  # of samples.jsonl and of telemetry.jsonl, which has a line a second: more than a day

# Lower-case ASCII only: no two names collide on a disk that folds case or normalises Unicode.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?")
_NAME_BYTES = 100
BLOCK = 512
ZEROS = bytes(BLOCK)
CHUNK = 2**16
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
    """The place of one file in a bundle."""

    name: str
    size: int
    offset: int  # of its first byte in the bundle


def payload_fault(names: Iterable[str]) -> str | None:
    """Say why a bundle cannot have exactly these payload files; None if it can."""
    present = set(names)
    for name, needed in PAYLOAD.items():
        if needed and name not in present:
            return f"{name} is missing"
    strangers = sorted(n for n in present if n not in PAYLOAD and not _LOG.fullmatch(n))
    return f"{strangers[0]:.100} is not a file of a bundle" if strangers else None


def sha256_of(chunks: Iterable[bytes]) -> str:
    """Return the sha256 of all chunks together, in hexadecimal."""
    total = hashlib.sha256()
    for chunk in chunks:
        total.update(chunk)
    return total.hexdigest()


def header(name: str, size: int) -> bytes:
    """Make the one ustar header that a member may have: mode 0644, no owner, no time, a regular file."""
    head = name.encode().ljust(_NAME_BYTES, b"\0")
    head += b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (0o644, 0, 0, size, 0)
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    checksum = sum(head) + sum(b" " * 8) + sum(tail)
    return head + b"%06o\0 " % checksum + tail


class MemberRules:
    """The rules for the members of one bundle, in their order; writer and reader share them."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._last = ""
        self._total = 0

    def fault(self, name: str, size: int) -> str | None:
        """Say why this member may not come next; None if it may: then the member is recorded."""
        if not _NAME.fullmatch(name) or len(name) > _NAME_BYTES:
            return f"the name {name[:120]!r} is not of the allowed form"
        if name <= self._last:
            return f"{name} stands twice" if name == self._last else f"{name} stands after {self._last}"
        if name.partition("/")[0] in self._names:
            return f"{name} lies in a directory that is a file too"
        if size > (most := MAX_WHOLE_BYTES.get(name, MAX_MEMBER_BYTES)):
            return f"{name} has {size} bytes; it has at most {most}"
        if self._total + size > MAX_TOTAL_BYTES:
            return f"the members have more than {MAX_TOTAL_BYTES} bytes in all"
        if len(self._names) == MAX_MEMBERS:
            return f"there are more than {MAX_MEMBERS} members"
        self._names.add(name)
        self._last = name
        self._total += size
        return None


class Bundle:
    """An open bundle whose headers and padding have been checked.

    bench.bundle.verify checks the bytes of the members against the signed digests.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self.members: Mapping[str, Member] = {m.name: m for m in self._walk()}

    def digest(self, name: str) -> str:
        """Compute the sha256 of a member of any size, in bounded memory."""
        return sha256_of(self.chunks(name))

    def read(self, name: str) -> bytes:
        """Read a member's bytes in one piece."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a member's bytes in chunks of CHUNK bytes."""
        member = self._member(name)
        end = member.offset + member.size
        for at in range(member.offset, end, CHUNK):
            self._file.seek(at)  # for each chunk: another member may have been read in between
            yield self._exactly(min(end - at, CHUNK))

    def _member(self, name: str) -> Member:
        if name not in self.members:
            raise VerificationFailed("is missing in the bundle", where=name)
        return self.members[name]

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise VerificationFailed("the file ends too early: it is truncated, or not a bundle")
        return data

    def _walk(self) -> Iterator[Member]:
        rules = MemberRules()
        self._file.seek(0)
        while (block := self._exactly(BLOCK)) != ZEROS:
            name, size = _parse_header(block)
            if fault := rules.fault(name, size):
                raise VerificationFailed(fault)
            member = Member(name, size, self._file.tell())
            self._skip(member)
            yield member
        if self._exactly(BLOCK) != ZEROS or self._file.tell() != self.size:
            raise VerificationFailed("something follows the end of the last member")

    def _skip(self, member: Member) -> None:
        end = member.offset + member.size
        padding = -member.size % BLOCK
        if end + padding + 2 * BLOCK > self.size:
            raise VerificationFailed("the file ends too early: it is truncated", where=member.name)
        self._file.seek(end)
        if self._exactly(padding) != bytes(padding):
            raise VerificationFailed("is followed by padding that is not zero", where=member.name)


def _parse_header(block: bytes) -> tuple[str, int]:
    name = block[:_NAME_BYTES].partition(b"\0")[0].decode("latin-1")
    digits = block[124:135]
    size = 0 if digits.strip(b"01234567") else int(digits, 8)
    if block != header(name, size):
        raise VerificationFailed(_header_fault(block, name))
    return name, size


def _header_fault(block: bytes, name: str) -> str:
    if packer := _COMPRESSED.get(block[:2]):
        return f"is compressed by {packer}; a bundle is a plain tar: decompress it first"
    if block[257:262] != b"ustar":
        return "is not a bundle, or a damaged one"
    if kind := _FOREIGN.get(block[156:157]):
        return f"holds {kind}; a bundle holds regular files only"
    if not _NAME.fullmatch(name):
        return f"the name {name!r} is not of the allowed form"
    return f"the header of {name} is not as bench writes it"


def _bundle_in(file: BinaryIO, where: str) -> Bundle:
    """Open a bundle; a file that is none and is known to be of another kind is refused by its kind."""
    try:
        return Bundle(file)
    except VerificationFailed:
        from bench.base.kinds_of_file import BUNDLE, MOST_BYTES, kind_of, require_kind

        file.seek(0)
        try:
            require_kind(BUNDLE, kind_of(file.read(MOST_BYTES)), where)
        except BadInput as other:
            raise VerificationFailed(other.message, where=where, advice=other.advice) from None
        raise


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Open the bundle at this path. BadInput if there is no file, VerificationFailed if it is not a bundle.

    A path with a line break is refused: in a table or a list, its second line could pass for a verdict.
    A VerificationFailed raised while the bundle is open gets the path in front of its `where`.
    """
    if "\n" in str(path):
        raise VerificationFailed("its name has a line break", where=str(path), advice="rename the file")
    with open_regular(path, unreadable=EnvironmentCannot) as file:
        try:
            yield _bundle_in(file, str(path))
        except VerificationFailed as error:
            if error.where is None or not error.where.startswith(str(path)):  # not in front yet
                error.where = f"{path}: {error.where}" if error.where else str(path)
            raise
        except OSError as error:
            raise EnvironmentCannot(f"cannot be read: {error.strerror}", where=str(path)) from None

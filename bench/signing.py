"""What is signed, and how: public keys, SSH signatures (SSHSIG), in-toto statements.

No files are touched here. Everything has one form only: a signature or a statement that would not come
out the same if written again is refused, so that nobody can change a byte of it and keep it valid.
"""

from __future__ import annotations

import hashlib
import re
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bench.codec import DecodeError, canonical_json, from_json, strict_loads, to_json
from bench.errors import VerificationFailed

NAMESPACE = "bench-bundle@v1"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# in-toto asks for a URI that nobody else can mean. A random UUID is one without a host to own and keep.
PREDICATE_TYPE = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#bench/run/v1"
PREDICATE_SCHEMA = "bench/run/v1"

_ED25519 = b"ssh-ed25519"
_BEGIN = "-----BEGIN SSH SIGNATURE-----\n"
_END = "\n-----END SSH SIGNATURE-----\n"
_ARMOR_COLUMNS = 70  # ssh-keygen's
_PRIME = 2**255 - 19
# The y of all points whose order divides 8: a signature under such a "key" fits many messages.
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_Y = frozenset({0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8})


class FormatError(ValueError):
    """Bytes that are not the key, the signature or the line that they should be."""


class Signer(Protocol):
    """What can sign: an Ed25519 private key, wherever it lives."""

    def public_key(self) -> Ed25519PublicKey: ...

    def sign(self, data: bytes, /) -> bytes: ...


def wire_string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class WireReader:
    """SSH's wire format: numbers of four bytes, and strings with their length in front."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, count: int) -> bytes:
        taken, self._data = self._data[:count], self._data[count:]
        if len(taken) != count:
            raise FormatError("ends too early")
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        if self._data:
            raise FormatError(f"has {len(self._data)} bytes too many")


def _shown(raw: bytes) -> str:
    """A name from outside, fit for a terminal."""
    return repr(raw.decode("ascii", "replace"))[1:-1][:60]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key in its one encoding, and none of the few that fit many signatures."""

    raw: bytes

    def __post_init__(self) -> None:
        y = int.from_bytes(self.raw, "little") & (2**255 - 1)
        if len(self.raw) != 32:
            raise FormatError("is no Ed25519 key: it has not 32 bytes")
        if y >= _PRIME:
            raise FormatError("is an Ed25519 key in a non-canonical encoding")
        if y in _SMALL_Y:
            raise FormatError("is an Ed25519 key of low order, under which anything seems signed")

    @classmethod
    def of(cls, key: Signer) -> PublicKey:
        return cls(key.public_key().public_bytes_raw())

    @classmethod
    def from_blob(cls, blob: bytes) -> PublicKey:
        wire = WireReader(blob)
        if (kind := wire.string()) != _ED25519:
            raise FormatError(f"is of type {_shown(kind)}, not ssh-ed25519")
        key = cls(wire.string())
        wire.end()
        return key

    @classmethod
    def from_line(cls, line: str) -> PublicKey:
        """From `ssh-ed25519 AAAA… comment`, the form of a .pub file."""
        kind, blob = (*line.split(maxsplit=2), "", "")[:2]
        if kind != _ED25519.decode():
            raise FormatError("is no ssh-ed25519 public key")
        return cls.from_blob(_from_base64(blob))

    @property
    def blob(self) -> bytes:
        return wire_string(_ED25519) + wire_string(self.raw)

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l shows it."""
        return "SHA256:" + _to_base64(hashlib.sha256(self.blob).digest()).rstrip("=")

    def line(self, comment: str = "") -> str:
        return f"ssh-ed25519 {_to_base64(self.blob)} {comment}".rstrip()


def _from_base64(text: str) -> bytes:
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:
        raise FormatError("is no base64") from None
    if _to_base64(data) != text:
        raise FormatError("is base64 in a non-canonical form")
    return data


def _to_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


# --- SSHSIG: what ssh-keygen -Y sign writes and -Y verify reads ---------------------------------------


def sign(message: bytes, key: Signer, namespace: str = NAMESPACE) -> bytes:
    """The armored signature; Ed25519 gives the same one each time."""
    return _armor(PublicKey.of(key), namespace, key.sign(_signed_data(message, namespace)))


def verify(message: bytes, armored: bytes, namespace: str = NAMESPACE) -> PublicKey:
    """The key that signed exactly these bytes for this namespace; whether to trust it is another matter."""
    try:
        key, signature = _open_armor(armored, namespace)
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, _signed_data(message, namespace))
    except FormatError as error:
        raise VerificationFailed(f"the signature {error}") from None
    except InvalidSignature:
        raise VerificationFailed("the signature does not fit the signed bytes") from None
    return key


def _signed_data(message: bytes, namespace: str) -> bytes:
    strings = (namespace.encode(), b"", b"sha512", hashlib.sha512(message).digest())
    return b"SSHSIG" + b"".join(map(wire_string, strings))


def _armor(key: PublicKey, namespace: str, signature: bytes) -> bytes:
    inner = wire_string(_ED25519) + wire_string(signature)
    strings = (key.blob, namespace.encode(), b"", b"sha512", inner)
    text = _to_base64(b"SSHSIG" + (1).to_bytes(4, "big") + b"".join(map(wire_string, strings)))
    lines = (text[i : i + _ARMOR_COLUMNS] for i in range(0, len(text), _ARMOR_COLUMNS))
    return (_BEGIN + "\n".join(lines) + _END).encode()


def _open_armor(armored: bytes, namespace: str) -> tuple[PublicKey, bytes]:
    text = armored.decode("ascii", "replace")
    if not text.startswith(_BEGIN) or not text.endswith(_END):
        raise FormatError("is no SSH signature")
    wire = WireReader(_from_base64(text[len(_BEGIN) : -len(_END)].replace("\n", "")))
    if wire.take(6) != b"SSHSIG" or wire.number() != 1:
        raise FormatError("is no SSH signature of version 1")
    key = PublicKey.from_blob(wire.string())
    if (found := wire.string()) != namespace.encode():
        raise FormatError(f"was made for the namespace {_shown(found)}, not {namespace}")
    if wire.string():
        raise FormatError("uses the reserved field")
    if (hashed := wire.string()) != b"sha512":
        raise FormatError(f"is over a hash by {_shown(hashed)}, not sha512")
    inner = WireReader(wire.string())
    if (kind := inner.string()) != _ED25519:
        raise FormatError(f"is by the algorithm {_shown(kind)}, not ssh-ed25519")
    signature = inner.string()
    inner.end()
    wire.end()
    if _armor(key, namespace, signature) != armored:
        raise FormatError("is not armored as ssh-keygen does it")
    return key, signature


# --- the statement: which files, of which run ----------------------------------------------------------

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SUBJECT = re.compile(r"[a-z0-9._/-]{1,100}")
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True, slots=True)
class Predicate:
    """What the signer says about the run as a whole."""

    run_id: str
    manifest_sha256: str
    node: Mapping[str, Any]  # what identifies it: GPU UUIDs, driver; never an address
    started_at: str  # RFC 3339 in UTC, to the second: see utc()
    ended_at: str
    complete: bool  # false: interrupted, or out of budget
    level: Literal["self"] = "self"  # who vouches for the signer: here nobody but itself
    schema: str = PREDICATE_SCHEMA


class Statement(NamedTuple):
    subjects: Mapping[str, str]  # file name -> sha256
    predicate: Predicate


def utc(unix_seconds: float) -> str:
    """The time as a statement writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_seconds))


def build_statement(subjects: Mapping[str, str], predicate: Predicate) -> bytes:
    """The bytes to sign, for files given by name and sha256: canonical JSON, subjects sorted by name."""
    if fault := _statement_fault(subjects, predicate):
        raise ValueError(fault)
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": n, "digest": {"sha256": d}} for n, d in sorted(subjects.items())],
            "predicateType": PREDICATE_TYPE,
            "predicate": to_json(predicate),
        }
    )


def parse_statement(data: bytes) -> Statement:
    """The statement in these bytes, if they are what build_statement makes of it."""
    try:
        document = strict_loads(data)
        _check_versions(document)
        subjects = _read_subjects(document.get("subject"))
        predicate = from_json(Predicate, document["predicate"])
    except DecodeError as error:
        raise VerificationFailed(f"the statement is malformed: {error}") from None
    if fault := _statement_fault(subjects, predicate):
        raise VerificationFailed(f"the statement is malformed: {fault}")
    # Once more by our own writer: refuses repeated or unsorted subjects, spaces, missing fields, all else.
    if build_statement(subjects, predicate) != data:
        raise VerificationFailed("the statement is not in its canonical form")
    return Statement(subjects, predicate)


def _read_subjects(listed: Any) -> dict[str, str]:
    with suppress(TypeError, KeyError):
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in listed}
        if all(isinstance(text, str) for pair in subjects.items() for text in pair):
            return subjects
    raise DecodeError("/subject: expected a list of names with their sha256")


def _check_versions(document: Any) -> None:
    """Before the shape is judged, so that a newer bundle is told from a broken one."""
    outer = document if isinstance(document, dict) else {}
    inner = outer.get("predicate")
    known = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE, "schema": PREDICATE_SCHEMA}
    for name, value in known.items():
        part = inner if name == "schema" else outer
        found = part.get(name) if isinstance(part, dict) else None
        if found != value:
            message = f"the statement's {name} is {found!r:.80}; this version of bench knows only {value}"
            raise VerificationFailed(message)


def _statement_fault(subjects: Mapping[str, str], predicate: Predicate) -> str | None:
    for name, sha256 in subjects.items():
        if not _SUBJECT.fullmatch(name) or not _SHA256.fullmatch(sha256):
            return f"the subject {name!r:.80} has a bad name or sha256"
    if subjects.get("manifest.json") != predicate.manifest_sha256:
        return "manifest_sha256 is not the digest of manifest.json"
    if not _RUN_ID.fullmatch(predicate.run_id):
        return f"{predicate.run_id!r:.80} is no run id"
    # Not their order: a clock may be set back during a run.
    if not (_UTC.fullmatch(predicate.started_at) and _UTC.fullmatch(predicate.ended_at)):
        return "started_at or ended_at is no time in UTC"
    return None

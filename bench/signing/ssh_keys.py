"""Parse and verify SSH keys and certificates, as ssh-keygen reads and writes them. Pure.

Only one encoding is accepted, the one that would be written, so that any changed byte makes the input
invalid. Two kinds of keys are accepted: Ed25519, and Ed25519 inside a FIDO token. The key determines the
algorithm; a signature that names another one is refused.
"""

from __future__ import annotations

import hashlib
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from bench.base.frozen import dataclass
from bench.base.stamps import YEAR_10000

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ED25519 = "ssh-ed25519"
TOKEN = "sk-ssh-ed25519@openssh.com"
CERTIFICATE = "ssh-ed25519-cert-v01@openssh.com"

_USER = 1  # certificate type "user"; certificates of hosts are refused
_TOUCHED = 0x01  # flag of a token: the user touched it
_EXTENDED = 0xC0  # flags of a token: extension data follows, which ssh-keygen never requests
_FOR_EVER = YEAR_10000  # bench treats later times as "forever"
_PRIME = 2**255 - 19
# y coordinates of all points whose order divides 8: a signature under such a "key" fits many messages.
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_Y = frozenset({0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8})


class FormatError(ValueError):
    """Bytes that are not a valid key, certificate, signature or line.

    The message is a predicate, such as "ends too early", before which the caller puts the subject.
    """


class WrongSignature(Exception):
    """A signature that the key did not make of the signed bytes."""


class Signer(Protocol):
    """An object that signs like an Ed25519 private key."""

    def public_key(self) -> Ed25519PublicKey:
        """Return the public half, by which signatures are verified."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the 64 bytes of the Ed25519 signature of the data."""


def wire_string(data: bytes | str) -> bytes:
    """Encode a string in SSH's wire format: its length in four bytes, then its bytes."""
    raw = data.encode() if isinstance(data, str) else data
    return len(raw).to_bytes(4, "big") + raw


class WireReader:
    """Read SSH's wire format: numbers of four or eight bytes, and strings prefixed by their length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """The bytes that were not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """Read bytes without a length in front; FormatError if fewer are left."""
        if count > self.left:
            raise FormatError("ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int = 4) -> int:
        """Read an unsigned number of `size` bytes, the highest first."""
        return int.from_bytes(self.take(size), "big")

    def string(self) -> bytes:
        """Read a string of bytes, whose length stands in front of it."""
        return self.take(self.number())

    def text(self) -> str:
        """Read a string; FormatError unless it is printable ASCII."""
        raw = self.string()
        if re.search(rb"[^ -~]", raw):
            raise FormatError(f"holds a name that is not plain ASCII: {shown(raw)}")
        return raw.decode()

    def inner(self) -> WireReader:
        """Read a string that is itself in wire format."""
        return WireReader(self.string())

    def end(self) -> None:
        """Refuse data after the last field, by FormatError."""
        if self.left:
            raise FormatError(f"has {self.left} bytes too many")


def shown(raw: bytes) -> str:
    """Return an untrusted name, escaped for the terminal and cut to 60 characters."""
    return repr(raw.decode("ascii", "replace"))[1:-1][:60]


def from_base64(text: str) -> bytes:
    """Decode base64 in its one canonical form; FormatError for any other text."""
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:
        raise FormatError("is not base64") from None
    if to_base64(data) != text:
        raise FormatError("is base64 in a non-canonical form")
    return data


def to_base64(data: bytes) -> str:
    """Encode bytes as base64 on one line."""
    return b2a_base64(data, newline=False).decode()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key in canonical encoding. Low-order keys, which fit many signatures, are refused."""

    raw: bytes
    application: str | None = None  # application of a FIDO token's key, such as "ssh:"; None: no token

    def __post_init__(self) -> None:
        y = int.from_bytes(self.raw, "little") & (2**255 - 1)
        if len(self.raw) != 32:
            raise FormatError("is not an Ed25519 key: its length is not 32 bytes")
        if y >= _PRIME:
            raise FormatError("is an Ed25519 key in a non-canonical encoding")
        if y in _SMALL_Y:
            raise FormatError("is an Ed25519 key of low order, which accepts signatures that nobody made")

    @classmethod
    def of(cls, key: Signer) -> PublicKey:
        """Return the public half of a private key."""
        return cls(key.public_key().public_bytes_raw())

    @classmethod
    def from_blob(cls, blob: bytes) -> PublicKey:
        """Parse a key in SSH's wire format; FormatError for another type or further bytes."""
        wire = WireReader(blob)
        kind = wire.string()
        if kind not in (ED25519.encode(), TOKEN.encode()):
            raise FormatError(f"is of type {shown(kind)}, not {ED25519}")
        raw = wire.string()
        key = cls(raw, wire.text() if kind == TOKEN.encode() else None)
        wire.end()
        return key

    @classmethod
    def from_line(cls, line: str) -> PublicKey:
        """Parse `ssh-ed25519 AAAA… comment`, the form of a .pub file."""
        kind, blob = (*line.split(), "", "")[:2]
        if kind not in (ED25519, TOKEN):
            raise FormatError(f"is not an {ED25519} public key")
        key = cls.from_blob(from_base64(blob))
        if key.kind != kind:
            raise FormatError(f"says {kind}, but holds a key of type {key.kind}")
        return key

    @property
    def kind(self) -> str:
        """The type of key, as OpenSSH names it."""
        return ED25519 if self.application is None else TOKEN

    @property
    def blob(self) -> bytes:
        """The key in SSH's wire format."""
        application = b"" if self.application is None else wire_string(self.application)
        return wire_string(self.kind) + wire_string(self.raw) + application

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as ssh-keygen -l shows it."""
        return "SHA256:" + to_base64(hashlib.sha256(self.blob).digest()).rstrip("=")

    def line(self, comment: str = "") -> str:
        """Return the key in the form of a .pub file, without a line feed."""
        return f"{self.kind} {to_base64(self.blob)} {comment}".rstrip()

    def check(self, signature: bytes, data: bytes) -> None:
        """Verify a raw Ed25519 signature of the data; WrongSignature if it does not fit."""
        # Imported late: OpenSSL takes 8 MB, and a node check signs after its workers have ended.
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            raise WrongSignature from None

    def check_wire(self, signature: bytes, data: bytes) -> None:
        """Verify a signature in SSH's wire format, with its algorithm and a token's flags and counter."""
        wire = WireReader(signature)
        if (kind := wire.string()) != self.kind.encode():
            raise FormatError(f"is by the algorithm {shown(kind)}, not {self.kind}")
        raw = wire.string()
        if self.application is not None:
            data = self._signed_by_token(wire, data)
        wire.end()
        self.check(raw, data)

    def _signed_by_token(self, wire: WireReader, data: bytes) -> bytes:
        """Return the bytes that a FIDO token signs in place of the data."""
        assert self.application is not None
        flags_and_counter = wire.take(5)
        if not flags_and_counter[0] & _TOUCHED or flags_and_counter[0] & _EXTENDED:
            raise FormatError("was made by a token that nobody touched")
        application = hashlib.sha256(self.application.encode()).digest()
        return application + flags_and_counter + hashlib.sha256(data).digest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A user certificate with a valid signature; `allowed_signers` decides whether to trust its authority."""

    key: PublicKey
    authority: PublicKey
    serial: int
    key_id: str
    principals: tuple[str, ...]
    valid_after: int  # unix seconds; inclusive
    valid_before: int  # unix seconds; exclusive
    options: Mapping[str, str]  # critical options: sshd refuses logins with critical options it does not know
    blob: bytes

    @classmethod
    def from_blob(cls, blob: bytes) -> Certificate:
        """Read a certificate in SSH's wire format; FormatError if it is not one for users."""
        wire = WireReader(blob)
        if (kind := wire.string()) != CERTIFICATE.encode():
            raise FormatError(f"is of type {shown(kind)}, not {CERTIFICATE}")
        wire.string()  # random bytes, called nonce in OpenSSH's format
        key = PublicKey(wire.string())
        serial, role, key_id = wire.number(8), wire.number(), wire.text()
        if role != _USER:
            raise FormatError("is not a certificate for users")
        principals = tuple(_texts(wire.inner()))
        valid_after, valid_before = wire.number(8), wire.number(8)
        if not valid_after < valid_before < _FOR_EVER:
            raise FormatError("is never valid, or valid forever")
        options = _options(wire.inner())
        if wire.string():
            raise FormatError("grants extensions, which a run's certificate must not have")
        if wire.string():
            raise FormatError("uses the reserved field")
        authority = PublicKey.from_blob(wire.string())
        signed = blob[: len(blob) - wire.left]
        signature = wire.string()
        wire.end()
        try:
            authority.check_wire(signature, signed)
        except WrongSignature:
            raise FormatError("is not signed by the authority that it names") from None
        return cls(key, authority, serial, key_id, principals, valid_after, valid_before, options, blob)

    @classmethod
    def from_line(cls, line: str) -> Certificate:
        """Parse the line of a file such as id-cert.pub; its comment is ignored."""
        kind, blob = (*line.split(), "", "")[:2]
        if kind != CERTIFICATE:
            raise FormatError(f"is not an {CERTIFICATE} certificate")
        return cls.from_blob(from_base64(blob))

    def line(self) -> str:
        """Return the certificate as such a file has it, without comment and line feed."""
        return f"{CERTIFICATE} {to_base64(self.blob)}"


def _texts(wire: WireReader) -> Iterator[str]:
    while wire.left:
        yield wire.text()


def _options(wire: WireReader) -> dict[str, str]:
    options: dict[str, str] = {}
    last = ""
    while wire.left:
        name, value = wire.text(), wire.inner()
        if name <= last:
            raise FormatError("has options that are not in order")
        options[name] = value.text()
        value.end()
        last = name
    return options

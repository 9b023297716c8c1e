"""Lists of what is revoked: OpenSSH's binary KRL (ssh-keygen -k), or a text file with a public key a line.

Format: PROTOCOL.krl of OpenSSH. A part that is not understood may revoke something, so that a list with one
is refused as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.files import read_bounded
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey, WireReader

MAX_BYTES = 16 * 2**20
_MAGIC = b"SSHKRL\n\0"
_CERTIFICATES, _KEYS, _SHA1, _SHA256 = 1, 2, 3, 5
_SERIALS, _RANGE, _BITMAP, _KEY_IDS = 0x20, 0x21, 0x22, 0x23


@dataclass(slots=True)
class _OfAuthority:
    """What is revoked among the certificates of one authority, or of any."""

    serials: set[int] = field(default_factory=set)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    bitmaps: list[tuple[int, int]] = field(default_factory=list)  # first serial, bits
    key_ids: set[bytes] = field(default_factory=set)

    def refusal(self, certificate: Certificate) -> str | None:
        serial = certificate.serial
        if certificate.key_id.encode() in self.key_ids:
            return f'the certificate "{certificate.key_id}" is revoked by its id'
        # ssh takes the serial 0 for none at all.
        if serial and (
            serial in self.serials
            or any(low <= serial <= high for low, high in self.ranges)
            or any(serial >= first and bits >> (serial - first) & 1 for first, bits in self.bitmaps)
        ):
            return f"the certificate {serial} is revoked by its serial number"
        return None


@dataclass(slots=True)
class Revoked:
    """What one list revokes. Only Ed25519 keys matter here: no other can sign a bundle."""

    source: str
    keys: set[bytes] = field(default_factory=set)  # blobs
    digests: set[bytes] = field(default_factory=set)  # SHA-1 or SHA-256 of blobs
    authorities: dict[bytes, _OfAuthority] = field(default_factory=dict)  # by blob; empty: any authority

    @classmethod
    def from_file(cls, path: Path) -> Revoked:
        too_large = f"more than {MAX_BYTES} bytes are no revocation list"
        data = read_bounded(path, MAX_BYTES, what="the revocation list", too_large=too_large)
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Revoked:
        found = cls(source)
        try:
            if data.startswith(_MAGIC):
                _read_binary(WireReader(data), found)
            else:
                found.keys |= {key.blob for key in _read_text(data)}
        except FormatError as error:
            advice = "give a list made by ssh-keygen -k, or a text file with a public key a line"
            raise BadInput(f"the revocation list {error}", where=source, advice=advice) from None
        return found

    def refusal(self, key: PublicKey, certificate: Certificate | None) -> str | None:
        """Why this signer no longer counts: its key, its certificate, or who certified it is revoked."""
        if self._has(key):
            return f"the key {key.fingerprint} is revoked"
        if certificate is None:
            return None
        if self._has(certificate.authority):
            return f"the authority {certificate.authority.fingerprint} is revoked"
        for authority in (certificate.authority.blob, b""):
            if authority in self.authorities and (why := self.authorities[authority].refusal(certificate)):
                return why
        return None

    def _has(self, key: PublicKey) -> bool:
        hashes = {hashlib.sha1(key.blob).digest(), hashlib.sha256(key.blob).digest()}
        return key.blob in self.keys or not self.digests.isdisjoint(hashes)


def _read_text(data: bytes) -> Iterable[PublicKey]:
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise FormatError("is neither a KRL nor a text") from None
    meant = [line for line in lines if line and not line.startswith("#")]
    if not meant:
        raise FormatError("is empty: it revokes nothing")
    for line in meant:
        if not line.startswith(("ssh-rsa ", "ecdsa-", "sk-ecdsa-")):  # which cannot sign a bundle anyway
            try:
                yield PublicKey.from_line(line)
            except FormatError as error:
                raise FormatError(f"is neither a KRL nor a text of public keys: a line {error}") from None


def _read_binary(wire: WireReader, found: Revoked) -> None:
    wire.take(len(_MAGIC))
    if wire.number() != 1:
        raise FormatError("is of a format version that bench does not know")
    wire.take(8 + 8 + 8)  # its own version, when it was made, flags
    wire.string()  # reserved
    wire.string()  # a comment
    while wire.left:
        kind, section = wire.number(1), wire.inner()
        if kind == _CERTIFICATES:
            _read_certificates(section, found)
        elif kind == _KEYS:
            found.keys |= set(_strings(section))
        elif kind in (_SHA1, _SHA256):
            found.digests |= set(_strings(section))
        else:
            raise FormatError(f"has a section of type {kind}, which bench does not know")


def _read_certificates(wire: WireReader, found: Revoked) -> None:
    revoked = found.authorities.setdefault(wire.string(), _OfAuthority())
    wire.string()  # reserved
    while wire.left:
        kind, part = wire.number(1), wire.inner()
        if kind == _SERIALS:
            while part.left:
                revoked.serials.add(part.number(8))
        elif kind == _RANGE:
            revoked.ranges.append((part.number(8), part.number(8)))
            part.end()
        elif kind == _BITMAP:
            revoked.bitmaps.append((part.number(8), int.from_bytes(part.string(), "big")))
            part.end()
        elif kind == _KEY_IDS:
            revoked.key_ids |= set(_strings(part))
        else:
            raise FormatError(f"has a list of type {kind}, which bench does not know")


def _strings(wire: WireReader) -> Iterable[bytes]:
    while wire.left:
        yield wire.string()

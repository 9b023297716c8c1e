"""Read revocation lists: OpenSSH's binary KRL (ssh-keygen -k), or a text file with a public key per line.

Format: PROTOCOL.krl of OpenSSH. A list with an unknown section, which may revoke something, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.files import read_bounded
from bench.base.paths import REVOKED, config_path
from bench.signing.ssh_keys import Certificate, FormatError, PublicKey, WireReader

MAX_BYTES = 16 * 2**20
_MAGIC = b"SSHKRL\n\0"
_CERTIFICATES, _KEYS, _SHA1, _SHA256 = 1, 2, 3, 5
_SERIALS, _RANGE, _BITMAP, _KEY_IDS = 0x20, 0x21, 0x22, 0x23


@dataclass(slots=True)
class _OfAuthority:
    """The revoked certificates of one authority, or those revoked for every authority."""

    serials: set[int] = field(default_factory=set)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    bitmaps: list[tuple[int, int]] = field(default_factory=list)  # first serial, and one bit per serial
    key_ids: set[bytes] = field(default_factory=set)

    def refusal(self, certificate: Certificate) -> str | None:
        """Return why a certificate is revoked, by its id or its serial number; None if it is not."""
        serial = certificate.serial
        if certificate.key_id.encode() in self.key_ids:
            return f'the certificate "{certificate.key_id}" is revoked by its id'
        # Serial 0 means that a certificate has no serial number.
        if serial and (
            serial in self.serials
            or any(low <= serial <= high for low, high in self.ranges)
            or any(serial >= first and bits >> (serial - first) & 1 for first, bits in self.bitmaps)
        ):
            return f"the certificate {serial} is revoked by its serial number"
        return None


@dataclass(slots=True)
class Revoked:
    """The contents of one revocation list, without key types that cannot sign a bundle (all but Ed25519)."""

    source: str
    keys: set[bytes] = field(default_factory=set)  # the keys' blobs
    digests: set[bytes] = field(default_factory=set)  # SHA-1 or SHA-256 of the keys' blobs
    authorities: dict[bytes, _OfAuthority] = field(default_factory=dict)  # by key blob; b"": any authority

    @classmethod
    def from_file(cls, path: Path) -> Revoked:
        """Read a revocation list of either form; BadInput if the file is neither."""
        too_large = f"larger than {MAX_BYTES} bytes: not a revocation list"
        data = read_bounded(path, MAX_BYTES, what="the revocation list", too_large=too_large)
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Revoked:
        """Parse a list of either form; `source` names it in errors. BadInput if it is damaged or empty."""
        revoked = cls(source)
        try:
            if data.startswith(_MAGIC):
                _read_binary(WireReader(data), revoked)
            else:
                revoked.keys |= {key.blob for key in _read_text(data)}
        except FormatError as error:
            advice = "give a list made by ssh-keygen -k, or a text file with a public key per line"
            raise BadInput(f"the revocation list {error}", where=source, advice=advice) from None
        return revoked

    def refusal(self, key: PublicKey, certificate: Certificate | None) -> str | None:
        """Return why a signer is revoked, by its key, certificate or authority; None if it is not revoked."""
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


def own_revocations() -> tuple[Revoked, ...]:
    """Return the user's own revocation list as a tuple, empty if there is no such list."""
    path = config_path(REVOKED)
    return (Revoked.from_file(path),) if path and path.exists() else ()


def _read_text(data: bytes) -> Iterable[PublicKey]:
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise FormatError("is neither a KRL nor a text") from None
    meant = [line for line in lines if line and not line.startswith("#")]
    if not meant:
        raise FormatError("is empty: it revokes nothing")
    for line in meant:
        if not line.startswith(("ssh-rsa ", "ecdsa-", "sk-ecdsa-")):  # key types that cannot sign a bundle
            try:
                yield PublicKey.from_line(line)
            except FormatError as error:
                raise FormatError(f"is neither a KRL nor a text of public keys: a line {error}") from None


def _read_binary(wire: WireReader, revoked: Revoked) -> None:
    wire.take(len(_MAGIC))
    if wire.number() != 1:
        raise FormatError("is of a format version that bench does not know")
    wire.take(8 + 8 + 8)  # the list's version, its date, flags
    wire.string()  # reserved
    wire.string()  # a comment
    while wire.left:
        kind, section = wire.number(1), wire.inner()
        if kind == _CERTIFICATES:
            _read_certificates(section, revoked)
        elif kind == _KEYS:
            revoked.keys |= set(_strings(section))
        elif kind in (_SHA1, _SHA256):
            revoked.digests |= set(_strings(section))
        else:
            raise FormatError(f"has a section of type {kind}, which bench does not know")


def _read_certificates(wire: WireReader, revoked: Revoked) -> None:
    certificates = revoked.authorities.setdefault(wire.string(), _OfAuthority())
    wire.string()  # reserved
    while wire.left:
        kind, part = wire.number(1), wire.inner()
        if kind == _SERIALS:
            while part.left:
                certificates.serials.add(part.number(8))
        elif kind == _RANGE:
            certificates.ranges.append((part.number(8), part.number(8)))
            part.end()
        elif kind == _BITMAP:
            certificates.bitmaps.append((part.number(8), int.from_bytes(part.string(), "big")))
            part.end()
        elif kind == _KEY_IDS:
            certificates.key_ids |= set(_strings(part))
        else:
            raise FormatError(f"has a list of type {kind}, which bench does not know")


def _strings(wire: WireReader) -> Iterable[bytes]:
    while wire.left:
        yield wire.string()

"""Make and verify SSHSIG signatures, which ssh-keygen -Y sign writes and -Y verify reads. Pure.

Signatures must have the exact encoding of ssh-keygen.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from bench.base.errors import VerificationFailed
from bench.signing import ssh_keys
from bench.signing.ssh_keys import (
    Certificate,
    FormatError,
    PublicKey,
    Signer,
    WireReader,
    WrongSignature,
    wire_string,
)

_BEGIN = "-----BEGIN SSH SIGNATURE-----\n"
_END = "\n-----END SSH SIGNATURE-----\n"
_ARMOR_COLUMNS = 70  # line length of ssh-keygen's base64


class Signed(NamedTuple):
    """The key that made a signature, and the certificate that came with it, if any."""

    key: PublicKey
    certificate: Certificate | None


def sign(message: bytes, key: Signer, namespace: str, certificate: Certificate | None = None) -> bytes:
    """Return an armored signature; equal input gives equal bytes, since Ed25519 is deterministic."""
    signature = wire_string(ssh_keys.ED25519) + wire_string(key.sign(_signed_data(message, namespace)))
    return _armor(certificate.blob if certificate else PublicKey.of(key).blob, namespace, signature)


def verify(message: bytes, armored: bytes, namespace: str, what: str = "the signature") -> Signed:
    """Return the signer of a message in a namespace; VerificationFailed if the signature is invalid.

    `allowed_signers` decides whether the signer is trusted.
    """
    try:
        blob, signature = _open_armor(armored, namespace)
        kind = WireReader(blob).string()
        certificate = Certificate.from_blob(blob) if kind == ssh_keys.CERTIFICATE.encode() else None
        key = certificate.key if certificate else PublicKey.from_blob(blob)
        key.check_wire(signature, _signed_data(message, namespace))
    except FormatError as error:
        raise VerificationFailed(f"{what} {error}") from None
    except WrongSignature:
        raise VerificationFailed(f"{what} does not fit the signed bytes") from None
    return Signed(key, certificate)


def _signed_data(message: bytes, namespace: str) -> bytes:
    strings = (namespace.encode(), b"", b"sha512", hashlib.sha512(message).digest())
    return b"SSHSIG" + b"".join(map(wire_string, strings))


def _armor(blob: bytes, namespace: str, signature: bytes) -> bytes:
    strings = (blob, namespace.encode(), b"", b"sha512", signature)
    text = ssh_keys.to_base64(b"SSHSIG" + (1).to_bytes(4, "big") + b"".join(map(wire_string, strings)))
    lines = (text[i : i + _ARMOR_COLUMNS] for i in range(0, len(text), _ARMOR_COLUMNS))
    return (_BEGIN + "\n".join(lines) + _END).encode()


def _open_armor(armored: bytes, namespace: str) -> tuple[bytes, bytes]:
    """Split an armored signature into the signer's blob and the signature."""
    text = armored.decode("ascii", "replace")
    if not text.startswith(_BEGIN) or not text.endswith(_END):
        raise FormatError("is not an SSH signature")
    wire = WireReader(ssh_keys.from_base64(text[len(_BEGIN) : -len(_END)].replace("\n", "")))
    if wire.take(6) != b"SSHSIG" or wire.number() != 1:
        raise FormatError("is not an SSH signature of version 1")
    blob = wire.string()
    if (signed_for := wire.string()) != namespace.encode():
        raise FormatError(f"was made for the namespace {ssh_keys.shown(signed_for)}, not {namespace}")
    if wire.string():
        raise FormatError("uses the reserved field")
    if (hashed := wire.string()) != b"sha512":
        raise FormatError(f"is over a hash by {ssh_keys.shown(hashed)}, not sha512")
    signature = wire.string()
    wire.end()
    if _armor(blob, namespace, signature) != armored:
        raise FormatError("is not armored as by ssh-keygen")
    return blob, signature

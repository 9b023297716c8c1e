"""Keys of signers, in the forms that other programs read."""

from __future__ import annotations

import base64
import tarfile
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key


def signer(bundle: Path) -> str:
    """Return the public key in a bundle's SSH signature."""
    with tarfile.open(bundle) as tar:
        member = tar.extractfile("statement.json.sig")
        assert member is not None
        _head, *lines, _foot = member.read().decode().split("\n")[:-1]
    blob = base64.b64decode("".join(lines))
    length = int.from_bytes(blob[10:14], "big")  # behind "SSHSIG" and its version
    return f"ssh-ed25519 {base64.b64encode(blob[14 : 14 + length]).decode()}\n"


def public_pem(key: Path) -> bytes:
    """Return the public half of an SSH key without a passphrase, as cosign reads it."""
    public = load_ssh_private_key(key.read_bytes(), None).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

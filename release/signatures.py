"""Checksums of a release's files, signed for ssh-keygen and for cosign, and its SLSA provenance."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench import __version__
from bench.base.stamps import file_sha256, sha256
from bench.images.attestation import PROVENANCE, URN, builder_of, sealed
from bench.signing.key_file import UserKey
from bench.signing.ssh_keys import to_base64
from bench.signing.sshsig import sign

NAMESPACE = "bench-release@v1"  # of the SSH signature
SIGNER = "bench-release"  # the name of the key in allowed_signers
SUMS = "SHA256SUMS"
BUILD_TYPE = f"{URN}bench/release/v1"


def checksums(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of every file below a folder, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


def write_signed(
    folder: Path, key: UserKey, inputs: Sequence[Mapping[str, Any]], builder: str | None
) -> None:
    """Write checksums, signatures, provenance and public key into the folder of a release's files."""
    found = checksums(folder)
    sums = "".join(f"{value}  {name}\n" for name, value in found.items()).encode()
    public = key.private.public_key()
    files = {
        SUMS: sums,
        f"{SUMS}.sig": sign(sums, key.private, NAMESPACE),
        f"{SUMS}.cosign": to_base64(key.private.sign(sums)).encode(),
        "provenance.dsse.json": _provenance({**found, SUMS: sha256(sums)}, key, inputs, builder),
        "release.pub": f"{key.public.line(SIGNER)}\n".encode(),
        "release.pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "allowed_signers": f'{SIGNER} namespaces="{NAMESPACE}" {key.public.line()}\n'.encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _provenance(
    found: Mapping[str, str], key: UserKey, inputs: Sequence[Mapping[str, Any]], builder: str | None
) -> bytes:
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"version": __version__},
            "internalParameters": {"python": sys.version.split()[0]},
            "resolvedDependencies": list(inputs),
        },
        "runDetails": {"builder": builder_of(key.private, builder)},
    }
    return sealed(found.items(), PROVENANCE, predicate, key.private)

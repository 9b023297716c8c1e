"""The key that signs a bundle of this machine, and how commands tell the user which one it was."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.base.paths import REVOKED, config_path
from bench.runner.run.seal import CertifiedKey, OwnKey, Seal, Sealer, read_challenge
from bench.signing.key_file import load_or_make_key
from bench.signing.revocation import Revoked
from bench.signing.ssh_keys import PublicKey


def make_sealer(manifest_digest: str, key: Path | None, challenge: Path | None) -> Sealer:
    """A key that an operator certifies, if there is a challenge; else the user's own, made at first use."""
    if challenge is not None:
        return CertifiedKey(read_challenge(challenge), manifest_digest)
    signer = load_or_make_key(key)
    if signer.made:
        print(f"new signing key: {signer.path}", file=sys.stderr)
    return OwnKey(signer.private)


def signed_text(seal: Seal) -> str:
    if seal.certificate is None:
        return f"signed by {PublicKey.of(seal.key).fingerprint}"
    return f"signed by a key that {seal.certificate.authority.fingerprint} certified for this run"


def own_revocations() -> tuple[Revoked, ...]:
    """The user's own revocation list, if there is one."""
    path = config_path(REVOKED)
    return (Revoked.from_file(path),) if path and path.exists() else ()

"""The key with which a run is signed: made for a challenge, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.runner.run.seal import CertifiedKey, OwnKey, Sealer, read_challenge
from bench.signing.key_file import load_or_make_key


def make_sealer(
    manifest_digest: str, key: Path | None, challenge: Path | None, say: Callable[[str], None]
) -> Sealer:
    """Return a new key to be certified if there is a challenge; else the user's own, made at first use."""
    if challenge is not None:
        return CertifiedKey(read_challenge(challenge), manifest_digest)
    signer = load_or_make_key(key)
    if signer.made:
        say(f"new signing key: {signer.path}")
    return OwnKey(signer.private)

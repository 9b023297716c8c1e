"""The key with which a run is signed: made for a challenge, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.runner.run.seal import CertifiedKey, OwnKey, OwnKeyReadLast, Sealer, read_challenge
from bench.signing.key_file import load_or_make_key, opens_without_asking


def make_sealer(
    manifest_digest: str,
    key: Path | None,
    challenge: Path | None,
    say: Callable[[str], None],
    *,
    read_last: bool = False,
) -> Sealer:
    """Return the key that signs a run: a new one for the operator's challenge, or else the user's own.

    The user's key is made at first use. With `read_last`, it is read only at the end of the run, unless it
    has to be made or unlocked.
    """
    if challenge is not None:
        return CertifiedKey(read_challenge(challenge), manifest_digest)
    if read_last and opens_without_asking(key):
        return OwnKeyReadLast(lambda: load_or_make_key(key).private)
    signer = load_or_make_key(key)
    if signer.made:
        say(f"new signing key: {signer.path}")
    return OwnKey(signer.private)

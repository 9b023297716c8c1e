"""The bundle of an earlier attempt at the same run: a certified one is not replaced by an uncertified one."""

from __future__ import annotations

import time
from pathlib import Path

from bench.base.errors import VerificationFailed
from bench.base.stamps import utc
from bench.bundle.tar_format import CERTIFICATE, open_bundle
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import AnyVerdict, recompute


def is_certified(bundle: Path) -> bool:
    """True if the bundle holds an operator's certificate; False if it is missing or damaged."""
    if not bundle.is_file():
        return False
    try:
        with open_bundle(bundle) as opened:
            return CERTIFICATE in opened.members
    except VerificationFailed:
        return False


def answered(bundle: Path, nonce: str | None) -> AnyVerdict | None:
    """Return the verdict on a bundle that already answers the challenge `nonce`, or None.

    The bundle must be complete and certified, and the operator must have received it or its certificate still
    be valid: a bundle whose certificate expired before it was received has to be signed again.
    """
    if not is_certified(bundle):
        return None
    try:
        verdict = verify_bundle(bundle, recompute)
    except VerificationFailed:
        return None
    is_valid = (verdict.certified_until or "") > utc(time.time())
    answers = verdict.nonce == nonce and verdict.complete
    return verdict if answers and (verdict.received_at is not None or is_valid) else None

"""The bundle that an earlier attempt at a run left: what an operator certified is not given up for less."""

from __future__ import annotations

import time
from pathlib import Path

from bench.base.errors import VerificationFailed
from bench.base.stamps import utc
from bench.bundle.tar_format import CERTIFICATE, open_bundle
from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import AnyVerdict, recompute


def is_certified(bundle: Path) -> bool:
    """One that is damaged, or not there, is nobody's."""
    if not bundle.is_file():
        return False
    try:
        with open_bundle(bundle) as opened:
            return CERTIFICATE in opened.members
    except VerificationFailed:
        return False


def answered(bundle: Path, nonce: str | None) -> AnyVerdict | None:
    """What it says, if it is all that this challenge asks for: complete, and received or still in time.

    Whose certificate expired before anybody fetched it is to be signed anew.
    """
    if not is_certified(bundle):
        return None
    try:
        verdict = verify_bundle(bundle, recompute)
    except VerificationFailed:
        return None
    in_time = (verdict.certified_until or "") > utc(time.time())
    asked = verdict.nonce == nonce and verdict.complete
    return verdict if asked and (verdict.received_at is not None or in_time) else None

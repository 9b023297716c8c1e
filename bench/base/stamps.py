"""Format and recognise the times, digests and identifiers in files. Pure, but for `file_sha256`."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

YEAR_10000 = 253_402_300_800  # unix time of its beginning


def utc(unix_seconds: float) -> str:
    """Format a time as statements do: RFC 3339 in UTC, to the second; ValueError past the year 9999."""
    if not 0 <= unix_seconds < YEAR_10000:
        raise ValueError("a time outside of the years 1970 to 9999")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_seconds))


def is_sha256(text: str) -> bool:
    """Whether a text has the form of a sha256 in hexadecimal."""
    return _SHA256.fullmatch(text) is not None


is_nonce = is_sha256  # a nonce has as many random bytes as a digest, also written in hexadecimal


def is_run_id(text: str) -> bool:
    """Whether a text has the form of a run's id, which is also the name of its folder."""
    return _RUN_ID.fullmatch(text) is not None


def sha256(data: bytes) -> str:
    """Return the sha256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal, without reading it into memory as a whole."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

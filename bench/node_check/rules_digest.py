"""Which code judges: bundles outlive it, and a check that has learned something makes no bundle a forgery."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

PACKAGES = ("bench.node_check", "bench.node_check.judging", "bench.node_check.checks")


@cache
def rules_digest() -> str:
    """The same in a checkout, a wheel and an image of one state of the code."""
    digest = sha256()
    for package in PACKAGES:
        sources = [path for path in files(package).iterdir() if path.name.endswith(".py")]
        for path in sorted(sources, key=lambda path: path.name):
            digest.update(f"{package}/{path.name}\0".encode() + path.read_bytes() + b"\0")
    return "sha256:" + digest.hexdigest()

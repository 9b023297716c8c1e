"""Digest of the code that judges node checks, by which bundles of other versions are recognised."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

PACKAGES = ("bench.node_check", "bench.node_check.judging", "bench.node_check.checks")


@cache
def rules_digest() -> str:
    """SHA-256 over the sources; equal in a checkout, a wheel and an image of the same code."""
    digest = sha256()
    for package in PACKAGES:
        sources = [path for path in files(package).iterdir() if path.name.endswith(".py")]
        for path in sorted(sources, key=lambda path: path.name):
            digest.update(f"{package}/{path.name}\0".encode() + path.read_bytes() + b"\0")
    return "sha256:" + digest.hexdigest()

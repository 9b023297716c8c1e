"""Small bundles for tests, signed by one key, and functions to inspect them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.frozen import dataclass
from bench.bundle.pack import pack, write_bundle
from bench.bundle.statement import Predicate
from bench.bundle.verdict import Contents, Verdict
from bench.bundle.verify import Files, verify_bundle

BLOCK = 512
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FILES: Mapping[str, bytes] = {
    "manifest.json": b'{"schema":"bench/manifest/v1"}',
    "results.json": b'{"trials":["0123456789abcdef"]}',
    "samples.jsonl": b'{"trial":"0123456789abcdef","seconds":[0.5,0.25]}\n' * 3,
    "logs/0123456789abcdef.txt": b"",
}


def predicate(files: Mapping[str, bytes | Path] = FILES, **changes: object) -> Predicate:
    manifest = files["manifest.json"]
    data = manifest if isinstance(manifest, bytes) else manifest.read_bytes()
    facts: dict[str, object] = {
        "run_id": "7f3a2c",
        "manifest_sha256": hashlib.sha256(data).hexdigest(),
        "node": {"gpu_uuids": ["GPU-5a0c"], "driver": "570.124"},
        "started_at": "2027-01-15T08:00:00Z",
        "ended_at": "2027-01-15T08:55:12Z",
        "complete": True,
    }
    return Predicate(**(facts | changes))  # type: ignore[arg-type]


def packed(path: Path, files: Mapping[str, bytes | Path] = FILES, **changes: object) -> Path:
    """Write a valid bundle, signed by KEY, to this path."""
    pack(path, files, predicate(files, **changes), KEY)
    return path


@dataclass(frozen=True)
class MadeUpContents(Contents):
    """A result of a recomputation; nothing was measured unless a test sets it."""

    samples: int = 0
    measured_seconds: float = 0.0

    def facts(self) -> dict[str, object]:
        return {"samples": self.samples}


def nothing(files: Files) -> MadeUpContents:
    """Replace the recomputation of summaries in tests about something else."""
    return MadeUpContents()


def check(path: Path) -> Verdict[MadeUpContents]:
    return verify_bundle(path, nothing)


def member(name: str, data: bytes, folder: Path) -> bytes:
    """Make one member as our writer does, to build archives that our writer would not write."""
    path = folder / "one-member"
    write_bundle(path, {name: data})
    return path.read_bytes()[: -2 * BLOCK]

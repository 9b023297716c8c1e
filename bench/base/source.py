"""The source of the running bench: a digest of its files, and the commit that they were checked out from."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from bench.base.distribution import DISTRIBUTION
from bench.base.stamps import sha256

PACKAGE = Path(__file__).parents[1]
CHANGED = "-changed"  # after a commit: files differ from it
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Source:
    """The source of bench. Equal digests mean equal code, wherever it is installed."""

    digest: str  # sha256 over the names and contents of its files
    commit: str | None  # None: neither in a checkout, nor installed by pip from a repository


@cache
def source() -> Source:
    """Return the source of the running bench."""
    return Source(digest_of(PACKAGE), _checked_out(PACKAGE) or _installed())


def digest_of(folder: Path) -> str:
    """Compute the digest of a package's files, without the bytecode that Python writes beside them."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in files):
        total.update(f"{sha256(path.read_bytes())}  {name}\n".encode())
    return total.hexdigest()


def _checked_out(folder: Path) -> str | None:
    """Return the commit of the checkout that a package is tracked in; None without git or checkout."""
    if not _git(folder, "ls-files", "__init__.py"):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    return f"{commit}{CHANGED}" if commit and _git(folder, "status", "--porcelain", ".") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ("git", "-C", str(folder), *arguments)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _installed() -> str | None:
    """Return the commit that pip recorded when it installed bench from a repository (PEP 610)."""
    try:
        noted = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        commit = json.loads(noted or "{}").get("vcs_info", {}).get("commit_id")
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    return commit if isinstance(commit, str) else None

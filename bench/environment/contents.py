"""The contents of a package: the files that an environment has of it, from any installer. Pure.

A wheel's files are the same wherever they are installed, except those that the installer writes: RECORD,
INSTALLER and the like, and bytecode. An environment has none of these except a RECORD of its own, so that the
contents of a package are the same from its wheel and from another Python's site-packages. The `tree_digest`
of the contents identifies a package; paths begin with SITE, or with bin or another folder beside it.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bench.environment.identity import InstalledFile

SITE = "site-packages"  # in paths of contents, in place of an environment's folder of packages
SCRIPTS = "bin"
RECORD = "RECORD"
# Files that pip and uv write into a package's folder of metadata; files of vendored packages are deeper.
_INSTALLERS = re.compile(
    r"[^/]+\.dist-info/(RECORD(\.jws|\.p7s)?|INSTALLER|REQUESTED|direct_url\.json|uv_(cache|build)\.json)"
)
_BYTECODE = re.compile(r"(.*/)?__pycache__/[^/]+\.pyc")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock: its version, and the digests of files that may be installed."""

    name: str
    version: str
    sha256: frozenset[str]  # digests of files
    contents: frozenset[str] = frozenset()  # digests of these files' contents, as far as they are known


def written_by_installers(name: str) -> bool:
    """Whether a file, by its path below a folder of packages, depends on who installed it."""
    return bool(_INSTALLERS.fullmatch(name) or _BYTECODE.fullmatch(name))


def in_environment(file: InstalledFile, site: str) -> InstalledFile:
    """Return a file of contents with its path in an environment, whose folder of packages is `site`."""
    if not file.path.startswith(f"{SITE}/"):
        return file
    return replace(file, path=f"{site}/{file.path.removeprefix(f'{SITE}/')}")


def record(files: Iterable[InstalledFile], site: str, path: str) -> bytes:
    """Return the RECORD of a package's files in an environment; `path` is the path of the RECORD itself."""
    above = "../" * (site.count("/") + 1)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for file in sorted(files):
        name = file.path.removeprefix(f"{site}/") if file.path.startswith(f"{site}/") else above + file.path
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.sha256)).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", ""])
    rows.writerow([path.removeprefix(f"{site}/"), "", ""])
    return text.getvalue().encode("utf-8", "surrogateescape")

"""The digests that identify an environment. Pure.

An environment is the locked packages, the Python that runs them, and the files that were installed. Two nodes
with the same three have the same digest, in any folder and by any installer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from bench.base.stamps import sha256
from bench.base.strict_json import canonical_json


@dataclass(frozen=True, slots=True, order=True)
class InstalledFile:
    """A file of an environment."""

    path: str  # below the environment's folder, with slashes
    sha256: str
    executable: bool

    @property
    def line(self) -> str:
        """Return the file's line in the list whose checksum identifies an environment.

        A line feed in its path must not look like the next line.
        """
        path = self.path.replace("\\", "\\\\").replace("\n", "\\n")
        return f"{self.sha256} {'x' if self.executable else '-'} {path}\n"


def tree_digest(files: Iterable[InstalledFile]) -> str:
    """Return the sha256 over the sorted lines of all files."""
    tree = hashlib.sha256()
    for file in sorted(files):
        tree.update(file.line.encode("utf-8", "surrogateescape"))
    return tree.hexdigest()


def environment_digest(lock: str, python: str, build: str, files: str) -> str:
    """Return an environment's digest, `sha256:...`, from the digests of its parts."""
    parts = {"lock": lock, "python": python, "build": build, "files": files}
    return f"sha256:{sha256(canonical_json(parts))}"

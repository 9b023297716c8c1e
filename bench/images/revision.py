"""Find the commit that an image is built from: in git, or in the file that a release's wheel carries."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from bench.base.errors import BadInput
from bench.images.variants import images

REVISION = "org.opencontainers.image.revision"  # label of an image
SOURCE_FILES = ("pyproject.toml", "README.md", "LICENSE", "bench")  # copied from the repository
BUILD_FILES = ("Dockerfile", "docker/install.py", "docker/kernels.py")
CARRIED = "revision"  # name of the file in which a release keeps its commit
_STATUS = ("status", "--porcelain", "--untracked-files=all", "--")


def commit_of(root: Path) -> str:
    """Return the commit of a checkout; BadInput for another folder, or if a file of the image differs.

    An installed package inside another repository that does not track it is not a checkout.
    """
    locks = [variant.lock for variant in images().variants]
    files = [*SOURCE_FILES, *BUILD_FILES, *locks, "docker"]
    try:
        git(root, "ls-files", "--error-unmatch", BUILD_FILES[0])
        commit, status = git(root, "rev-parse", "HEAD"), git(root, *_STATUS, *files)
    except (OSError, subprocess.CalledProcessError):
        advice = "provenance names a commit: attest in the git checkout that the image was built from"
        raise BadInput("is not a git checkout", where=str(root), advice=advice) from None
    if lines := status.splitlines():
        message = f"{lines[0][3:]} differs from the commit, and nobody could build this image again"
        raise BadInput(message, where=str(root), advice="commit it, and build the image once more")
    return commit.strip()


def git(root: Path, *arguments: str) -> str:
    """Return what git prints about a checkout; CalledProcessError if it refuses."""
    command = ("git", "-C", str(root), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def revision_of(root: Path) -> str | None:
    """Return the commit that a folder is checked out or released from; None if its files match no commit."""
    carried = root / CARRIED
    if carried.exists():
        return carried.read_text(encoding="utf-8").strip()
    try:
        return commit_of(root)
    except BadInput:
        return None


def source_url(root: Path) -> str | None:
    """Return the URL of the published source, from [project.urls] of pyproject.toml; None if it has none."""
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"] if path.exists() else {}
    url = project.get("urls", {}).get("Source")
    return url if isinstance(url, str) else None

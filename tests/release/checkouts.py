"""Checkouts of bench as it is here, each committed with the same time, from which releases are made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.e2e.images import ROOT

FILES = (
    "Dockerfile", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "requirements.lock", "setup.py",
    "bench", "docker", "manifests", "release",
)  # fmt: skip
TIME = "2026-01-02T03:04:05Z"
WITHOUT_BYTECODE = shutil.ignore_patterns("__pycache__")


def copy_of_source(folder: Path) -> None:
    """Copy the files of a release from this checkout, with their present contents, into a new folder."""
    folder.mkdir()
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=WITHOUT_BYTECODE)
        else:
            shutil.copyfile(ROOT / name, folder / name)


def checkout(folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Commit all that a release is made of in a new repository, and `files`, which may replace some of it."""
    copy_of_source(folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__/\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        git(folder, *words)
    return folder


def git(folder: Path, *words: str) -> str:
    person = {"NAME": "A Maintainer", "EMAIL": "maintainer@b.org"}
    names = {f"GIT_{who}_{what}": person[what] for who in ("AUTHOR", "COMMITTER") for what in person}
    dates = {f"GIT_{who}_DATE": TIME for who in ("AUTHOR", "COMMITTER")}
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    environment = os.environ | names | dates | own
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def release(
    source: Path, *words: str | Path, umask: int = -1, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the release script of a checkout, with its own code."""
    own = {"PYTHONPATH": str(source), "GIT_CONFIG_GLOBAL": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "release", *map(str, words)]
    done = subprocess.run(
        command, cwd=source, env=os.environ | own | environment, umask=umask,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done

"""The source of bench that ran is known by its files, and by the commit that git knows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.base import source as module
from bench.base.source import CHANGED, PACKAGE, digest_of, source


def git(folder: Path, *arguments: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(folder), *own, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Commit a package of two files."""
    folder = tmp_path / "checkout" / "bench"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("one = 1\n")
    (folder / "data.json").write_text("{}\n")
    git(folder.parent, "init", "--quiet")
    git(folder.parent, "add", "--all")
    git(folder.parent, "commit", "--quiet", "--message", "first")
    return folder


def test_the_commit_of_a_checkout_is_found_and_a_change_is_told(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD")
    assert module._checked_out(package) == commit
    (package / "data.json").write_text("[]\n")
    assert module._checked_out(package) == commit + CHANGED


def test_a_package_that_no_repository_tracks_has_no_commit(package: Path) -> None:
    """The package may lie inside of a checkout, as an environment may."""
    other = package.parent / "venv" / "bench"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    assert module._checked_out(other) is None


def test_without_git_there_is_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(package))
    assert module._checked_out(package) is None


def test_the_digest_follows_names_and_contents_and_no_compiled_files(package: Path) -> None:
    before = digest_of(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert digest_of(package) == before
    (package / "data.json").rename(package / "other.json")
    assert digest_of(package) != before


def test_bench_knows_its_own_source() -> None:
    assert source().digest == digest_of(PACKAGE)
    assert source() == source()

"""The inputs of a build, before anything is built."""

from __future__ import annotations

import json
import shutil
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import bench
from bench.base.errors import BadInput
from bench.base.kernel_list import MODULES
from bench.images.build_image import BuildInputs, described, labels
from bench.images.debian_base import EXCLUDED, LICENCES
from bench.images.locks import read_pins
from bench.images.revision import REVISION, commit_of, revision_of
from bench.images.variants import find_variant, images
from tests.base.test_source import git

ROOT = Path(bench.__file__).parent.parent


@pytest.fixture
def recipe(tmp_path: Path) -> BuildInputs:
    """Inputs of the CUDA image."""
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    shutil.copy(ROOT / "docker/debian.lock", tmp_path / "docker")
    return BuildInputs(tmp_path, find_variant("cuda13"), tmp_path / "cache")


def test_an_image_is_whole_without_the_kernels_that_have_to_be_compiled(recipe: BuildInputs) -> None:
    assert not (recipe.root / recipe.variant.built_lock).exists()
    assert recipe.pins().keys() == read_pins(recipe.lock).keys() - set(recipe.variant.kernels)
    assert recipe.pins()["torch"].version == "2.11.0"
    assert labels(recipe)["bench.without"] == "causal-conv1d deepspeed flash-attn mamba-ssm"


def test_the_kernels_of_a_variant_have_modules_by_which_they_are_found() -> None:
    named = {name for variant in images().variants for name in variant.kernels}
    assert named == MODULES.keys()


def test_the_image_says_what_it_was_made_of(recipe: BuildInputs) -> None:
    said = labels(recipe)
    assert (said["bench.variant"], said["bench.cuda"], said["bench.driver"]) == (
        "cuda13",
        "13.0",
        "580.65.06",
    )
    inside = json.loads(described(recipe))
    assert (inside["variant"], inside["lock"], inside["debian"]) == (
        "cuda13",
        said["bench.lock"],
        said["bench.debian"],
    )
    assert not any(str(recipe.root) in value for value in said.values())


def test_another_lock_is_another_image(recipe: BuildInputs) -> None:
    before = labels(recipe)
    with recipe.lock.open("a") as lock:
        lock.write("# a comment\n")
    assert labels(recipe)["bench.lock"] != before["bench.lock"]


OCI = "org.opencontainers.image"


def commit(root: Path) -> str:
    """Commit all that an image is built from; return the commit."""
    for name in ("Dockerfile", "pyproject.toml", "bench/__init__.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("[project]\n" if name == "pyproject.toml" else "")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")
    return git(root, "rev-parse", "HEAD")


def test_an_image_names_the_time_of_its_locks_and_the_commit_it_was_built_from(recipe: BuildInputs) -> None:
    revision = commit(recipe.root)
    said = labels(recipe)
    assert said[f"{OCI}.revision"] == revision
    assert said[f"{OCI}.created"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(images().epoch))
    assert f"{OCI}.source" not in said  # pyproject.toml publishes it nowhere


def test_an_image_names_where_its_source_is_published(recipe: BuildInputs) -> None:
    (recipe.root / "pyproject.toml").write_text('[project.urls]\nSource = "https://example.org/bench"\n')
    assert labels(recipe)[f"{OCI}.source"] == "https://example.org/bench"


@pytest.mark.parametrize("name", ["bench/new.py", "docker/debian.lock", "requirements.lock", "Dockerfile"])
def test_files_that_differ_from_the_commit_are_those_of_none(recipe: BuildInputs, name: str) -> None:
    commit(recipe.root)
    (recipe.root / name).write_text("changed")
    assert revision_of(recipe.root) is None


def test_other_files_of_the_checkout_do_not_matter(recipe: BuildInputs) -> None:
    revision = commit(recipe.root)
    (recipe.root / "notes.txt").write_text("")
    assert revision_of(recipe.root) == revision


def test_a_folder_that_a_repository_ignores_has_no_commit(recipe: BuildInputs) -> None:
    """An installed package may lie in an environment inside of another project's checkout."""
    commit(recipe.root)
    inner = recipe.root / ".venv"
    (inner / "docker").mkdir(parents=True)
    for name in ("Dockerfile", "docker/install.py"):
        (inner / name).write_text("")
    (recipe.root / ".gitignore").write_text(".venv\n")
    assert revision_of(inner) is None
    with pytest.raises(BadInput, match="is not a git checkout"):
        commit_of(inner)


def test_a_released_source_carries_its_commit(recipe: BuildInputs) -> None:
    (recipe.root / "revision").write_text("c" * 40 + "\n")
    assert labels(recipe)[REVISION] == "c" * 40


def left_out(path: str) -> bool:
    """Return whether dpkg leaves a file out by these patterns, whose `*` matches slashes too."""
    return any(fnmatchcase(path, each) for each in EXCLUDED) and not fnmatchcase(path, LICENCES)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/share/doc/gcc/README",
        "/usr/bin/x86_64-linux-gnu-lto-dump-12",
        "/usr/lib/python3.11/config-3.11-x86_64-linux-gnu/libpython3.11-pic.a",
        "/usr/lib/x86_64-linux-gnu/libasan.so.8.0.0",
        "/usr/lib/gcc/x86_64-linux-gnu/12/libtsan.a",
    ],
)
def test_the_base_lacks_what_compiling_extensions_does_not_need(path: str) -> None:
    assert left_out(path)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/share/doc/gcc/copyright",
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
        "/usr/lib/gcc/x86_64-linux-gnu/12/libgcc.a",
        "/usr/lib/gcc/x86_64-linux-gnu/12/libgomp.spec",
        "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libc_nonshared.a",
    ],
)
def test_the_base_keeps_compilers_libraries_and_licences(path: str) -> None:
    assert not left_out(path)

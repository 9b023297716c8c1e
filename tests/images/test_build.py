"""The inputs of a build, before anything is built."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

import bench
from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.build_image import BuildInputs, described, labels
from bench.images.revision import REVISION, commit_of, revision_of
from bench.images.variants import find_variant, images
from tests.base.test_source import git

ROOT = Path(bench.__file__).parent.parent
HASH = "0" * 64


@pytest.fixture
def recipe(tmp_path: Path) -> BuildInputs:
    """Inputs of the CUDA image, whose kernels are not compiled yet."""
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    shutil.copy(ROOT / "docker/debian.lock", tmp_path / "docker")
    return BuildInputs(tmp_path, find_variant("cuda13"), tmp_path / "cache")


def built(recipe: BuildInputs, *names: str) -> None:
    versions = {
        "flash-attn": "2.8.3.post2",
        "mamba-ssm": "2.3.2.post1",
        "causal-conv1d": "1.7.0",
        "deepspeed": "0.19.8",
    }
    recipe.built.write_text("".join(f"{n}=={versions[n]} --hash=sha256:{HASH}\n" for n in names))


def test_an_image_is_made_of_the_wheels_that_were_compiled(recipe: BuildInputs) -> None:
    built(recipe, "flash-attn", "mamba-ssm", "causal-conv1d", "deepspeed")
    pins = recipe.pins()
    assert {pins[name].sha256 for name in recipe.variant.kernels} == {frozenset({HASH})}
    assert pins["torch"].version == "2.11.0"
    assert HASH not in pins["torch"].sha256


def test_a_kernel_that_is_not_compiled_is_named_with_what_to_do(recipe: BuildInputs) -> None:
    built(recipe, "mamba-ssm")
    with pytest.raises(EnvironmentCannot, match="no wheel of flash-attn") as caught:
        recipe.pins()
    assert caught.value.advice == "bench image kernels cuda13, or --without flash-attn"


def test_a_kernel_left_out_is_missing_and_reported(recipe: BuildInputs) -> None:
    built(recipe, "mamba-ssm", "causal-conv1d", "deepspeed")
    less = dataclasses.replace(recipe, without=("flash-attn",))
    assert "flash-attn" not in less.pins()
    assert labels(less)["bench.without"] == "flash-attn"
    with pytest.raises(BadInput, match='"torch" cannot be left out'):
        dataclasses.replace(recipe, without=("torch",)).pins()


def test_the_image_says_what_it_was_made_of(recipe: BuildInputs) -> None:
    said = labels(recipe)
    assert (said["bench.variant"], said["bench.cuda"], said["bench.driver"]) == (
        "cuda13",
        "13.0",
        "580.65.06",
    )
    assert "bench.without" not in said
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
    with pytest.raises(BadInput, match="is no git checkout"):
        commit_of(inner)


def test_a_released_source_carries_its_commit(recipe: BuildInputs) -> None:
    (recipe.root / "revision").write_text("c" * 40 + "\n")
    assert labels(recipe)[REVISION] == "c" * 40

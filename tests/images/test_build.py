"""The inputs of a build, before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bench
from bench.base.kernel_list import MODULES
from bench.images.build_image import BuildInputs, described, labels
from bench.images.locks import read_pins
from bench.images.variants import find_variant, images

ROOT = Path(bench.__file__).parent.parent


@pytest.fixture
def recipe(tmp_path: Path) -> BuildInputs:
    """Inputs of the CUDA image."""
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    shutil.copy(ROOT / "docker/debian.lock", tmp_path / "docker")
    return BuildInputs(tmp_path, find_variant("cuda13"), tmp_path / "cache")


def test_an_image_is_whole_without_the_kernels_that_have_to_be_compiled(recipe: BuildInputs) -> None:
    assert not recipe.built.exists()
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

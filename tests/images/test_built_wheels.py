"""`bench image kernels`: the context that it builds in, and where it keeps the wheels."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import bench
from bench.images import build_image, build_kernels
from bench.images.build_image import BuildInputs
from bench.images.variants import find_variant

ROOT = Path(bench.__file__).parent.parent


class Builder:
    """Replacement for buildah that makes wheels named by their variant and records its arguments."""

    def __init__(self) -> None:
        self.beside: set[str] = set()
        self.said: list[str] = []

    def __call__(
        self, folder: Path, recipe: BuildInputs, saved: Path | None, *, volumes: Sequence[str], **_: object
    ) -> None:
        self.beside = {line.partition("==")[0] for line in (folder / "builder.txt").read_text().splitlines()}
        made = Path(next(v for v in volumes if ":/made:" in v).partition(":")[0])
        for source in (folder / "sources").iterdir():
            stem = source.name.removesuffix(".tar.gz")
            (made / f"{stem}-cp311-cp311-linux_x86_64.whl").write_text(f"{stem} for {recipe.variant.name}")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """Replace everything that needs a base, an index or root."""
    found = Builder()
    monkeypatch.setattr(build_kernels, "buildah", found)
    monkeypatch.setattr(
        build_kernels, "check_prerequisites", lambda inputs: inputs.cache.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(build_image, "wheels", lambda pins, cache, python: {})
    (tmp_path / "base.tar").touch()
    monkeypatch.setattr(build_image, "_base", lambda recipe, say: tmp_path / "base.tar")

    def source(pin: object, cache: Path) -> Path:
        path = tmp_path / f"{pin.name.replace('-', '_')}-{pin.version}.tar.gz"  # type: ignore[attr-defined]
        path.touch()
        return path

    monkeypatch.setattr(build_kernels, "source", source)
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "docker", root / "docker", ignore=shutil.ignore_patterns("*.built.lock"))
    for name in ("Dockerfile", "requirements.lock"):
        shutil.copy(ROOT / name, root)
    return root


def compiled(builder: Builder, repository: Path, variant: str, *only: str) -> BuildInputs:
    recipe = BuildInputs(repository, find_variant(variant), repository.parent / "cache")
    list(build_kernels.build_kernels(recipe, only, "9.0", 1, builder.said.append))
    return recipe


def test_two_variants_keep_their_wheels_of_one_name(builder: Builder, repository: Path) -> None:
    recipes = [compiled(builder, repository, name) for name in ("cuda13", "cuda12.8")]
    for recipe in recipes:
        found = build_kernels.compiled_wheels(recipe)
        assert found.keys() == set(recipe.variant.kernels)
        assert all(path.read_text().endswith(f" for {recipe.variant.name}") for path in found.values())


def test_nvcc_is_installed_only_for_variants_that_need_it(builder: Builder, repository: Path) -> None:
    compiled(builder, repository, "cuda13", "mamba-ssm")
    assert {"nvidia-cuda-nvcc", "pip", "wheel"} <= builder.beside
    compiled(builder, repository, "cuda12.8")
    assert {"pip", "wheel"} <= builder.beside
    assert not any(name.startswith("nvidia-") for name in builder.beside)
    assert "no GPU kernels" in builder.said[-1]

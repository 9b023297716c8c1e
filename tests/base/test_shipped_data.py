"""Manifests and locks are found in a checkout, and beside an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base import shipped_data
from bench.base.shipped_data import locks_folder, manifest_path, repository
from tests.layers import ROOT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of an environment's packages, in which the wheel has put its files."""
    carried = tmp_path / "site-packages/bench_source"
    (carried / "manifests").mkdir(parents=True)
    (carried / "manifests/hour.json").write_text("{}")
    monkeypatch.setattr(shipped_data, "_BESIDE", carried.parent)
    monkeypatch.chdir(tmp_path)
    return carried


def test_a_checkout_has_its_own_files() -> None:
    assert repository() == ROOT.parent
    assert (repository() / "docker/cpu.lock").exists()


def test_an_installed_package_has_those_of_its_wheel(installed: Path) -> None:
    assert repository() == locks_folder() == installed


def test_the_working_folder_comes_first_if_it_is_a_checkout(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/cpu.lock").touch()
    assert locks_folder() == tmp_path


def test_a_shipped_manifest_is_found_from_anywhere(installed: Path, tmp_path: Path) -> None:
    assert manifest_path("manifests/hour.json") == installed / "manifests/hour.json"
    own = tmp_path / "manifests/hour.json"
    own.parent.mkdir()
    own.touch()
    assert manifest_path("manifests/hour.json") == Path("manifests/hour.json")


@pytest.mark.parametrize(
    "text", ["hour.json", "manifests/none.json", "other/manifests/hour.json", "manifests/../x"]
)
def test_any_other_path_is_what_it_says(installed: Path, text: str) -> None:
    assert manifest_path(text) == Path(text)

"""The real CPU image is built from clean stores, and again after a change of our code."""

from __future__ import annotations

import filecmp
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.images.locks import read_pins
from bench.images.revision import CARRIED, REVISION
from release.python_packages import build, unpacked_wheel
from tests.e2e.images import ROOT, Images, build_image
from tests.release.checkouts import copy_of_source

pytestmark = pytest.mark.e2e


@pytest.fixture
def installed(images: Images, tmp_path: Path) -> Path:
    """Install the wheel of the source, of the commit that the image names, if any; return its folder."""
    revision, made, site = images.one["labels"].get(REVISION), tmp_path / "made", tmp_path / "site"
    copy_of_source(tmp_path / "source")
    if revision:
        (tmp_path / "source" / CARRIED).write_text(revision)
    made.mkdir()
    setuptools = unpacked_wheel(read_pins(ROOT / "docker/cpu.lock")["setuptools"], tmp_path)
    _, wheel = build(tmp_path / "source", made, 1_700_000_000, setuptools)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)  # keeps modes, unlike zipfile
    shutil.rmtree(tmp_path / "source")
    return site


def test_two_builds_from_clean_stores_are_the_same_image_also_by_the_wheel_alone(
    images: Images, installed: Path
) -> None:
    image, other = images.one, images.folder / "other"
    wheels = images.folder / "cache/wheels"  # the build checks each by its digest
    shutil.copytree(wheels, other / "wheels", copy_function=os.link)
    again = build_image(other, images.folder / "two.tar", None, code=installed)
    assert again["config"] == image["config"]
    assert filecmp.cmp(images.folder / "one.tar", images.folder / "two.tar", shallow=False)
    (images.folder / "two.tar").unlink()
    shutil.rmtree(other)


def test_a_change_of_benchs_code_builds_without_a_network_and_ships_one_small_layer(images: Images) -> None:
    image, found = images.one, images.changed
    same = [new == old for new, old in zip(found["diff_ids"], image["diff_ids"], strict=True)]
    assert same == [True] * 4 + [False]
    with tarfile.open(images.folder / "changed.tar") as archive:
        layer = archive.extractfile(found["layers"][-1]["name"])
        assert layer is not None
        assert len(gzip.compress(layer.read())) < 1_300_000


def test_no_trace_of_the_build_is_in_any_layer(images: Images) -> None:
    traces, set_id = [], []
    with tarfile.open(images.folder / "one.tar") as archive:
        for layer in images.one["layers"]:
            blob = archive.extractfile(layer["name"])
            with tarfile.open(fileobj=blob, mode="r|*") as files:
                for member in files:
                    last = member.name.rpartition("/")[2]
                    if last in ("__pycache__", "direct_url.json", "machine-id", "resolv.conf", "hosts"):
                        traces.append(member.name)
                    if member.isfile() and member.mode & 0o6000:
                        set_id.append(member.name)
    assert (traces, set_id) == ([], [])


def test_the_sbom_is_valid_and_lists_what_is_in_the_image(images: Images) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert images.one
    command = [sys.executable, "-m", "bench", "image", "sbom", str(images.folder / "one.tar")]
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {component["name"]: component["version"] for component in json.loads(text)["components"]}
    debs = [line.split() for line in (ROOT / "docker/debian.lock").read_text().splitlines()[1:]]
    assert found["torch"] == "2.13.0+cpu"
    assert {(name, version) for name, version, *_ in debs} <= found.items()

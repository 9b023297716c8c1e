"""The contents of the real CPU image, and its build after a change of our code.

tests/e2e/test_image.py builds it a second time.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile

import pytest

from tests.e2e.images import ROOT, Images

pytestmark = pytest.mark.e2e


def test_a_change_of_benchs_code_builds_without_a_network_and_ships_one_small_layer(images: Images) -> None:
    image, found = images.one, images.changed
    same = [new == old for new, old in zip(found["diff_ids"], image["diff_ids"], strict=True)]
    assert same == [True] * 4 + [False]
    with tarfile.open(images.folder / "changed.tar") as archive:
        layer = archive.extractfile(found["layers"][-1]["name"])
        assert layer is not None
        assert len(gzip.compress(layer.read())) < 1_200_000


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
    assert {(name, version) for name, version, _ in debs} <= found.items()

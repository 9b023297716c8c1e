"""A node assembles a layer from its skeleton and from package files: the bytes are those of the builder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.images import assemble
from bench.images.archive import read_facts
from bench.images.assemble import AssemblyPlace, AssemblyPlan, LayerDiffers, LayerPlan
from bench.images.skeleton import LayerParts, split, write_contents
from bench.packages.package_index import PackageFile
from tests.images.odd_packages import (
    ENTRY_POINTS,
    ODD,
    installed,
    layer_of,
    make_deb,
    make_wheel,
    package_file,
)

ROOT = Path(assemble.__file__).parents[2]
CRC32_POLYNOMIAL = 0x104C11DB7


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("blobs", "packages"):
        (tmp_path / "place" / name).mkdir(parents=True)
    return tmp_path / "place"


def put(place: Path, data: bytes) -> str:
    """Store a file among the blobs of a place; return its name there."""
    name = hashlib.sha256(data).hexdigest()
    (place / "blobs" / name).write_bytes(data)
    return name


def skeleton(place: Path, layer: bytes) -> tuple[LayerPlan, LayerParts]:
    path = place / "skeleton.xz"
    parts = split(io.BytesIO(layer), path)
    diff_id = hashlib.sha256(layer).hexdigest()
    return LayerPlan(diff_id, parts.size, put(place, path.read_bytes()), None), parts


def planned(
    place: Path, layers: Sequence[LayerPlan], files: Sequence[PackageFile], contents: Sequence[str] = ()
) -> AssemblyPlan:
    config = {"rootfs": {"diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]}}
    name = put(place, json.dumps(config).encode())
    return AssemblyPlan("bench:test", name, tuple(layers), tuple(files), tuple(contents), "", "")


def here(place: Path, *paths: Path) -> list[PackageFile]:
    """Put package files on the node, as if it had downloaded them."""
    files = [package_file(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        (place / "packages" / file.sha256).write_bytes(path.read_bytes())
    return files


def assembled(place: Path, layer: bytes, files: Sequence[PackageFile]) -> tuple[bytes, int]:
    """Assemble a layer, whose lacking contents are sent; return its bytes, and the sent bytes."""
    plan, _ = skeleton(place, layer)
    (lacking,) = AssemblyPlace(place, planned(place, [plan], files), place / "work").missing()
    more = place / "more.zip"
    write_contents(io.BytesIO(layer), lacking, more)
    sent = put(place, more.read_bytes())
    out = io.BytesIO()
    AssemblyPlace(place, planned(place, [plan], files, [sent]), place / "work").archive(out)
    out.seek(0)
    facts = read_facts(out, "assembled")  # compares each layer with the configuration
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        file = archive.extractfile(facts.layers[0].name)
        assert file is not None
        return file.read(), more.stat().st_size


def test_a_layer_of_odd_wheels_is_the_one_that_pip_made(tmp_path: Path, place: Path) -> None:
    """Data, scripts, entry points, long and foreign names, executable bits; equal contents in two wheels."""
    other = {"other/same.bin": ODD["odd/same-1.bin"], "odd/extra.py": (b"# of another wheel\n" * 9, 0o644)}
    wheels = [
        make_wheel(tmp_path, "odd", ODD, ENTRY_POINTS),
        make_wheel(tmp_path, "other", other),
    ]
    layer = installed(tmp_path, wheels)
    made, sent_bytes = assembled(place, layer, here(place, *wheels))
    assert made == layer
    assert sent_bytes < 0.03 * len(layer)  # RECORD, and scripts whose first line pip writes
    _, parts = skeleton(place, layer)
    assert parts.projects == ("odd", "other")


@pytest.mark.parametrize("seed", range(5))
def test_any_layer_is_assembled_from_any_files(tmp_path: Path, place: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, wheel = tmp_path / "made", {}
    for number in range(60):
        path = root / f"{'sub/' * chance.randrange(3)}{chance.choice('aäж数')}{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = chance.randbytes(chance.choice([0, 1, 99, 100, 511, 512, 513, 5000]))
        path.write_bytes(data)
        path.chmod(chance.choice([0o644, 0o755, 0o600]))
        if chance.random() < 0.7:
            wheel[f"w/{number}"] = (data, 0o644)
    (root / "link").symlink_to("a/b")
    (root / "hard").hardlink_to(next(path for path in root.iterdir() if path.is_file()))
    layer = layer_of(root)
    made, _ = assembled(place, layer, here(place, make_wheel(tmp_path, "w", wheel)))
    assert made == layer


def test_a_layer_of_debian_packages_takes_data_and_control_files(tmp_path: Path, place: Path) -> None:
    tool, sums = b"#!/bin/sh\n" + b"true\n" * 200, b"0123  usr/bin/tool\n" * 30
    deb = make_deb(tmp_path, "tool", {"usr/bin/tool": tool, "usr/doc": b"x" * 999}, {"md5sums": sums})
    root = tmp_path / "base"
    for name, data in {
        "usr/bin/tool": tool,
        "var/lib/dpkg/info/tool.md5sums": sums,
        "var/lib/dpkg/status": b"Package: tool\n" * 20,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    layer = layer_of(root)
    plan, parts = skeleton(place, layer)
    files = here(place, deb)
    assert parts.has_debs
    assert parts.contents == (len(tool), len(sums), 280)
    assert AssemblyPlace(place, planned(place, [plan], files), place / "work").missing() == [[2]]
    assert assembled(place, layer, files)[0] == layer


def test_debian_packages_are_unpacked_once(tmp_path: Path, place: Path) -> None:
    """The search for missing contents leaves unpacked files to the assembly, if the packages are equal."""
    first, second = b"1" * 700, b"2" * 900
    debs = [make_deb(tmp_path, name, {name: data}, {}) for name, data in (("a", first), ("b", second))]
    root = tmp_path / "base"
    root.mkdir()
    (root / "a").write_bytes(first)
    (root / "b").write_bytes(second)
    plan, _ = skeleton(place, layer_of(root))
    files = here(place, debs[0])
    assert AssemblyPlace(place, planned(place, [plan], files), place / "work").missing() == [[1]]
    files += here(place, debs[1])
    assert AssemblyPlace(place, planned(place, [plan], files), place / "work").missing() == [[]]
    for file in files:
        (place / "packages" / file.sha256).write_bytes(b"this is no package any more")
    AssemblyPlace(place, planned(place, [plan], files), place / "work").archive(io.BytesIO())


def test_nothing_is_loadable_if_a_layer_comes_out_differently(tmp_path: Path, place: Path) -> None:
    """Another content of the same size and crc32: only the layer's digest can tell."""
    unseen = int(f"{CRC32_POLYNOMIAL:b}"[::-1], 2).to_bytes(5, "little")  # a change that crc32 does not see
    root = tmp_path / "made"
    root.mkdir()
    (root / "file").write_bytes(unseen + bytes(195))
    plan, _ = skeleton(place, layer_of(root))
    files = here(place, make_wheel(tmp_path, "w", {"w/file": (bytes(200), 0o644)}))
    assert AssemblyPlace(place, planned(place, [plan], files), place / "work").missing() == [[]]
    out = io.BytesIO()
    with pytest.raises(LayerDiffers):
        AssemblyPlace(place, planned(place, [plan], files), place / "work").archive(out)
    out.seek(0)
    with tarfile.open(fileobj=out, mode="r|", ignore_zeros=True) as archive:
        assert "manifest.json" not in archive.getnames()


def test_layers_that_were_sent_or_are_held_need_no_skeleton(place: Path) -> None:
    layer = layer_of(Path(__file__).parent / "__init__.py")
    blob = put(place, gzip.compress(layer))
    sent = LayerPlan(hashlib.sha256(layer).hexdigest(), 0, None, blob)
    out = io.BytesIO()
    AssemblyPlace(
        place, planned(place, [LayerPlan("a" * 64, 0, None, None), sent], []), place / "work"
    ).archive(out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        names = archive.getnames()
        (image,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert image["Layers"] == [f"blobs/sha256/{'a' * 64}", f"blobs/sha256/{blob}"]
    assert f"blobs/sha256/{'a' * 64}" not in names
    assert names[-1] == "manifest.json"


def test_a_plan_survives_its_file(tmp_path: Path, place: Path) -> None:
    file = PackageFile("a-1-py3-none-any.whl", "b" * 64, None)
    plan = planned(place, [LayerPlan("a" * 64, 5, "c" * 64, None)], [file])
    (tmp_path / "plan.json").write_text(json.dumps(plan._asdict()))
    assert assemble.read_plan(tmp_path / "plan.json") == plan


@pytest.fixture
def own_configuration(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine whose pip has no configuration but the test's."""
    return {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}


def test_files_are_fetched_in_rounds_until_all_are_here_or_nowhere(
    tmp_path: Path, place: Path, own_configuration: dict[str, str]
) -> None:
    here, nowhere = make_wheel(tmp_path, "a", ODD), make_wheel(tmp_path, "b", ODD)
    (tmp_path / "index/a").mkdir(parents=True)
    here.rename(tmp_path / "index/a" / here.name)
    files = [package_file(tmp_path / "index/a" / here.name), package_file(nowhere)]
    plan = planned(place, [], files)._replace(index_url=(tmp_path / "index").as_uri())
    answer = AssemblyPlace(place, plan, place / "work").fetch(0.0, own_configuration)
    assert (answer["arrived_bytes"], answer["done"], answer["nowhere"]) == (0, False, [])
    answer = AssemblyPlace(place, plan, place / "work").fetch(60.0, own_configuration)
    assert (answer["arrived_bytes"], answer["done"]) == (files[0].size, True)
    assert answer["nowhere"] == [[nowhere.name, "no index, folder or mirror lists it"]]
    assert (place / "packages" / files[0].sha256).exists()


def test_certificates_that_cannot_be_read_end_the_program_with_one_line(
    place: Path, own_configuration: dict[str, str]
) -> None:
    plan = planned(place, [], [])
    (place / "plan.json").write_text(json.dumps(plan._asdict()))
    command = [sys.executable, "-m", "bench.images.assemble", "fetch", "plan.json", "1"]
    variables = {**own_configuration, "PIP_CERT": "/no/such.pem", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "/no/such.pem: certificates that pip's configuration names cannot be read: "
        "No such file or directory; correct `cert` in pip's configuration, or REQUESTS_CA_BUNDLE\n"
    )


def test_an_engine_that_ends_early_keeps_the_last_word(place: Path) -> None:
    plan = planned(place, [], [])
    (place / "plan.json").write_text(json.dumps(plan._asdict()))
    (place / "blobs" / plan.config).write_bytes(bytes(2**22))
    command = f"{sys.executable} -m bench.images.assemble archive plan.json | head -c 1 >/dev/null"
    done = subprocess.run(
        command,
        shell=True,
        cwd=place,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""

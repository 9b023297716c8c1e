"""Archives, layers, skeletons and code that this machine prepares for nodes, once for all of them."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Identity, ImageFacts, Layer, facts_of
from bench.images.package_list import LIST
from bench.images.variants import images
from bench.packages.package_index import PackageFile
from bench.push import image_store
from bench.push.image_store import ImageStore, Shippable
from release.archives import extract_all
from tests.images.made_up_images import make_image

FILES = {"usr/a": b"one" * 2000, "usr/b": b"two" * 3000}


@dataclasses.dataclass
class Made:
    """A store in a folder of its own, an image, and what the store said."""

    store: ImageStore
    path: Path
    said: list[str]

    @property
    def image(self) -> Shippable:
        return Shippable(self.path, facts_of(self.path))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    said: list[str] = []
    store = ImageStore(said.append)
    store.folder = tmp_path / "cache"
    return Made(store, make_image(tmp_path, [FILES, {"usr/c": b"three"}]), said)


def facts(*layers: Layer, labels: dict[str, str] | None = None) -> ImageFacts:
    config: Any = SimpleNamespace(labels=labels or {})
    return ImageFacts(Identity("sha256:c", ()), config, b"{}", layers, ())


# --- an image -------------------------------------------------------------------------------------------


def test_the_variant_of_an_image_is_its_label() -> None:
    assert Shippable(Path("x"), facts(labels={"bench.variant": "cpu"})).variant.name == "cpu"
    for labels in ({}, {"bench.variant": "other"}):
        with pytest.raises(BadInput, match="x: is not an image of bench") as caught:
            _ = Shippable(Path("x"), facts(labels=labels)).variant
        assert caught.value.advice == "bench image build makes one"


def test_an_unpacked_image_is_estimated_rather_too_large() -> None:
    layers = Layer("a", 1000, "a", compressed=True), Layer("b", 100, "b", compressed=False)
    assert Shippable(Path("x"), facts(*layers)).unpacked_bytes == 3630


# --- layers ---------------------------------------------------------------------------------------------


def test_a_layer_is_compressed_once(made: Made) -> None:
    blob = made.store.layer(made.image, 1)
    assert made.said == ["compressing layer 2 of 2, once"]
    assert (blob.path.parent, blob.path.name) == (
        made.store.folder / "blobs", made.image.facts.layers[1].diff_id.removeprefix("sha256:"),
    )  # fmt: skip
    assert blob.compressed and blob.diff_id == made.image.facts.layers[1].diff_id
    with tarfile.open(fileobj=gzip.open(blob.path)) as archive:  # type: ignore[arg-type]
        assert archive.getnames() == ["usr/c"]
    os.utime(blob.path, (0, 0))
    assert made.store.layer(made.image, 1) == blob
    assert len(made.said) == 1
    assert blob.path.stat().st_mtime > 0  # it is in use
    for lost in (blob.path, blob.path.with_suffix(".digest")):
        lost.unlink()
        assert made.store.layer(made.image, 1) == blob
    assert len(made.said) == 3


def test_the_size_of_a_layer_is_estimated_until_it_is_compressed(made: Made) -> None:
    size = made.image.facts.layers[0].size
    assert made.store.packed_bytes(made.image, 0) == int(0.3 * size)
    layer = Layer("x", 777, "sha256:x", compressed=True)
    assert made.store.packed_bytes(Shippable(made.path, facts(layer)), 0) == 777
    blob = made.store.layer(made.image, 0)
    assert made.store.packed_bytes(made.image, 0) == blob.path.stat().st_size


def test_a_skeleton_is_made_once(made: Made) -> None:
    first = made.store.skeleton(made.image, 0)
    assert made.said == ["splitting layer 1 of 2, once"]
    assert first.parts.contents == (6000, 9000) and first.blob.compressed
    os.utime(first.blob.path, (0, 0))
    assert made.store.skeleton(made.image, 0) == first
    assert first.blob.path.stat().st_mtime > 0
    known = first.blob.path.with_suffix(".json")
    for damage in (lambda: known.write_bytes(b"{}"), known.unlink, first.blob.path.unlink):
        damage()
        assert made.store.skeleton(made.image, 0) == first
    assert len(made.said) == 4


def test_contents_are_packed_once_for_each_choice(made: Made) -> None:
    one = made.store.contents(made.image, 0, (1,))
    both = made.store.contents(made.image, 0, (1, 0))
    assert one.path.parent == made.store.folder / "contents" and one.compressed
    assert made.store.contents(made.image, 0, (0, 1)) == both != one
    assert one.diff_id == both.diff_id == made.image.facts.layers[0].diff_id
    written = one.path.stat().st_ino
    assert made.store.contents(made.image, 0, (1,)).path.stat().st_ino == written


def test_a_configuration_is_a_file_by_its_digest(made: Made) -> None:
    for _ in range(2):
        blob = made.store.configuration(made.image)
        assert blob.path == made.store.folder / "configurations" / made.image.config.removeprefix("sha256:")
        assert blob.path.read_bytes() == made.image.facts.config_bytes
        assert (blob.digest, blob.diff_id, blob.compressed) == (made.image.config, made.image.config, False)


def test_an_image_lists_its_package_files_or_none(made: Made, tmp_path: Path) -> None:
    assert made.store.package_files(made.image) == ()
    for number, (schema, files) in enumerate((("v1", (PackageFile("a.whl", "a" * 64, 5),)), ("v2", ()))):
        document = {"schema": f"bench/packages/{schema}", "files": [["a.whl", "a" * 64, 5]]}
        path = make_image(tmp_path, [{LIST: json.dumps(document).encode()}], f"{number}.tar")
        assert made.store.package_files(Shippable(path, facts_of(path))) == files


# --- code -----------------------------------------------------------------------------------------------


def members(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert {member.mtime for member in archive} == {0}
        return archive.getnames()


def test_the_program_that_assembles_has_the_packages_that_it_imports(made: Made) -> None:
    names = members(made.store.assembler())
    assert names[0] == "bench/__init__.py" and "bench/images/assemble.py" in names
    assert {name.split("/")[1] for name in names} == {"__init__.py", "images", "packages"}
    assert made.store.assembler()[4:8] == bytes(4)  # no time


def test_the_code_of_bench_is_packed_once_without_compiled_files(made: Made) -> None:
    digest, data = made.store.code()
    assert made.store.code()[1] is data
    assert digest == image_store.sha256(data)
    names = members(data)
    assert "bench/data/gpus.json" in names and names == sorted(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_program_that_assembles_is_complete(made: Made, tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(made.store.assembler()), mode="r:gz") as archive:
        extract_all(archive, tmp_path / "code")
    command = [sys.executable, "-B", "-c", "import bench.images.assemble as a; print(a.__file__)"]
    variables = {"PYTHONPATH": str(tmp_path / "code")}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "code/bench/images/assemble.py")


@pytest.mark.parametrize("folder", ["blobs", "skeletons", "contents", "configurations"])
def test_what_was_not_used_for_30_days_is_deleted(made: Made, folder: str) -> None:
    place, day = made.store.folder / folder, 86400
    place.mkdir(parents=True)
    for name, age in (
        ("old", 30 * day + 1),
        ("old.digest", 0),
        ("new", 30 * day),
        ("other.digest", 99 * day),
    ):
        (place / name).touch()
        os.utime(place / name, (0, 10**9 - age))
    made.store.tidy(10.0**9)
    assert sorted(path.name for path in place.iterdir()) == ["new", "other.digest"]


# --- where an image comes from ----------------------------------------------------------------------------


def test_an_archive_is_hashed_once_until_it_changes(made: Made) -> None:
    first = made.store.image(str(made.path), None)
    assert first == made.image
    assert made.store.image(str(made.path), "580") is first
    again = ImageStore(made.said.append)
    again.folder = made.store.folder
    assert again.image(str(made.path), None) == first
    assert made.said == [f"reading {made.path}, once"]
    os.utime(made.path, (0, 0))
    later = ImageStore(made.said.append)
    later.folder = made.store.folder
    assert later.image(str(made.path), None) == first
    for path in (made.store.folder / "known").iterdir():
        path.write_bytes(b"{}")
    last = ImageStore(made.said.append)
    last.folder = made.store.folder
    assert last.image(str(made.path), None) == first
    assert made.said == [f"reading {made.path}, once"] * 3


def test_facts_of_an_archive_are_read_as_they_were_written(made: Made) -> None:
    found = made.image.facts
    written = json.loads(json.dumps(image_store._facts_to(found)))
    assert image_store._facts_from(written) == found


@dataclasses.dataclass
class Engine:
    """An engine with one image, that of `path`, under any name; or with none."""

    path: Path | None
    saved: list[str] = dataclasses.field(default_factory=list)
    name: str = "docker"

    def inspect(self, name: str) -> Any:
        if self.path is None:
            raise EnvironmentCannot(f"docker has no image {name}")
        return SimpleNamespace(identity=facts_of(self.path).identity)

    def save(self, name: str, out: Path) -> None:
        assert self.path is not None
        self.saved.append(name)
        out.write_bytes(self.path.read_bytes())


@pytest.fixture
def engine(made: Made, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine(made.path)
    monkeypatch.setattr(image_store, "find_engine", lambda name: {"auto": engine}[name])
    monkeypatch.chdir(made.path.parent)
    return engine


def test_an_image_of_a_local_engine_is_saved_once_for_each_identity(made: Made, engine: Engine) -> None:
    image = made.store.image("bench:mine", None)
    assert image.path == made.store.folder / f"saved/{made.image.config.removeprefix('sha256:')}.tar"
    assert image.facts == made.image.facts
    again = ImageStore(made.said.append)
    again.folder = made.store.folder
    assert again.image("bench:other", None).path == image.path
    assert engine.saved == ["bench:mine"]
    assert made.said == ["saving bench:mine from docker, once", f"reading {image.path}, once"]


def test_a_file_that_is_not_there_is_none_of_an_engine(made: Made, engine: Engine) -> None:
    with pytest.raises(BadInput, match=r"absent\.tar: no such file") as caught:
        made.store.image("absent.tar", None)
    assert caught.value.advice is not None and "bench image build" in caught.value.advice
    assert engine.saved == []


@pytest.mark.parametrize(("driver", "variant"), [(None, "cpu"), ("999.0", "cuda13"), ("1.0", "cuda12.8")])
def test_without_a_name_the_image_is_the_one_for_the_driver(
    made: Made, engine: Engine, driver: str | None, variant: str
) -> None:
    """Too old a driver gets the oldest variant for GPUs: the preflight says what is wrong with it."""
    built = made.path.parent / f"out/images/bench-{variant}.tar"
    exported = made.store.image(None, driver)
    assert engine.saved == [f"bench:{variant}"]
    assert exported.facts == made.image.facts
    built.parent.mkdir(parents=True)
    built.write_bytes(made.path.read_bytes())
    assert made.store.image(None, driver).path == Path(f"out/images/bench-{variant}.tar")
    assert engine.saved == [f"bench:{variant}"]


@pytest.mark.parametrize(("driver", "what"), [(None, "no GPU"), ("999.0", "driver 999.0")])
def test_an_image_that_is_nowhere_is_told_with_how_to_build_it(
    made: Made, engine: Engine, driver: str | None, what: str
) -> None:
    engine.path, variant = None, "cuda13" if driver else "cpu"
    with pytest.raises(EnvironmentCannot) as caught:
        made.store.image(None, driver)
    assert caught.value.message == (
        f"the image for {what} is not on this machine: out/images/bench-{variant}.tar"
    )
    assert caught.value.advice == f"bench image build {variant}, or --image FILE"


def test_a_file_that_vanishes_is_named(made: Made) -> None:
    with pytest.raises(BadInput, match=r"gone\.tar: no such file"):
        made.store._facts(made.path.with_name("gone.tar"))


def test_the_variants_of_this_test_are_those_of_bench() -> None:
    assert [variant.name for variant in images().variants if variant.driver] == ["cuda13", "cuda12.8"]

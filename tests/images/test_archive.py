"""An image's identity is computed from its bytes, which hold no trace of the build machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from bench.base.errors import BadInput, VerificationFailed
from bench.images.archive import Blob, extract, facts_of, pack_layer, write_archive
from tests.images.made_up_images import archive_of, as_docker_saves, layer, make_image, normalised

FILES: dict[str, bytes | None] = {"usr": None, "usr/a": b"one", "usr/b": b"two"}


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_a_layer_is_the_same_whoever_built_it_and_whenever() -> None:
    one = normalised(layer(FILES, mtime=1, uname="root", gname="root"))
    other = normalised(layer(FILES, mtime=10**9, uname="builder", pax_headers={"comment": "x"}))
    assert one == other


def test_owners_by_number_and_modes_are_content() -> None:
    assert normalised(layer(FILES, uid=1)) != normalised(layer(FILES, uid=2))
    assert normalised(layer(FILES, mode=0o755)) != normalised(layer(FILES, mode=0o644))


@pytest.mark.parametrize(
    "trace",
    [
        "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "run/.containerenv", "proc/1/x",
        "tmp/x", "root/.cache/pip/x", "var/log/dpkg.log", "var/cache/x", "var/lib/apt/lists/x", "build",
        "usr/lib/python3/__pycache__", "usr/lib/python3/__pycache__/os.cpython-311.pyc", "usr/x.pyc",
    ],
)  # fmt: skip
def test_traces_of_a_build_are_dropped(trace: str) -> None:
    assert names(normalised(layer({**FILES, trace: b"trace"}))[0]) == list(FILES)


@pytest.mark.parametrize(
    "kept", ["etc/passwd", "var/lib/dpkg/status", "usr/lib/tmp/x", "tmp", "run", "etc/hosts.allow"]
)
def test_files_that_only_look_like_build_traces_are_kept(kept: str) -> None:
    assert kept in names(normalised(layer({**FILES, kept: b"x"}))[0])


def test_the_digest_is_of_the_bytes_written() -> None:
    data, digest = normalised(layer(FILES))
    assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_identity_is_the_digest_of_the_configuration(tmp_path: Path) -> None:
    found = facts_of(make_image(tmp_path, [FILES, {"etc/x": b"1"}]))
    assert found.identity.config == f"sha256:{hashlib.sha256(found.config_bytes).hexdigest()}"
    assert list(found.identity.diff_ids) == json.loads(found.config_bytes)["rootfs"]["diff_ids"]
    assert found.labels["bench.variant"] == "cpu"


def test_the_same_image_makes_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir(), (tmp_path / "2").mkdir()
    one, two = (make_image(tmp_path / n, [FILES]) for n in "12")
    assert one.read_bytes() == two.read_bytes()


def test_identity_survives_docker_s_form_and_compression(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES, {"etc/x": b"1"}])
    wanted = facts_of(image)
    assert facts_of(as_docker_saves(image, tmp_path / "docker.tar")).identity == wanted.identity
    packed = [(tmp_path / f"{number}.gz", one) for number, one in enumerate(wanted.layers)]
    blobs = [Blob(p, one.diff_id, pack_layer(image, one, p), compressed=True) for p, one in packed]
    write_archive(tmp_path / "packed.tar", wanted.config_bytes, blobs, "bench:test")
    found = facts_of(tmp_path / "packed.tar")
    assert found.identity == wanted.identity
    assert all(one.compressed for one in found.layers)


def test_an_oci_layout_has_the_same_identity(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    with tarfile.open(image) as old, tarfile.open(tmp_path / "oci.tar", "w") as new:
        for member in old:
            if member.name != "manifest.json":
                new.addfile(member, old.extractfile(member))
    assert facts_of(tmp_path / "oci.tar").identity == facts_of(image).identity


def test_one_changed_byte_of_a_layer_is_found(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    data = image.read_bytes()
    assert data.count(b"two") == 1
    image.write_bytes(data.replace(b"two", b"twp"))
    with pytest.raises(VerificationFailed, match="layer 1 is not the one that its configuration names"):
        facts_of(image)


def test_a_layer_left_out_is_found(tmp_path: Path) -> None:
    image = as_docker_saves(make_image(tmp_path, [FILES, {"etc/x": b"1"}]), tmp_path / "docker.tar")
    with tarfile.open(image) as old, tarfile.open(tmp_path / "less.tar", "w") as new:
        for member in old:
            data = old.extractfile(member).read()  # type: ignore[union-attr]
            if member.name == "manifest.json":
                (entry,) = json.loads(data)
                data = json.dumps([entry | {"Layers": entry["Layers"][:1]}]).encode()
                member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    with pytest.raises(VerificationFailed, match="has 1 layers, its configuration names 2"):
        facts_of(tmp_path / "less.tar")


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100, layer({"x": b"1"})])
def test_a_file_that_is_not_an_image_is_bad_input(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(BadInput, match=r"x\.tar"):
        facts_of(tmp_path / "x.tar")


DEEP = b"[" * 200_000 + b"]" * 200_000
CONFIGURATION = {"rootfs": {"diff_ids": []}, "config": {"Labels": {"a": "b"}}}


@pytest.mark.parametrize(
    "documents",
    [
        {"manifest__json": DEEP},
        {"manifest__json": [7]},
        {"manifest__json": {"Config": "c"}},
        {"manifest__json": [{"Config": 5, "Layers": []}]},
        {"manifest__json": [{"Config": [], "Layers": []}]},
        {"manifest__json": [{"Config": "c", "Layers": 5}]},
        {"manifest__json": [{"Config": "c", "Layers": [{}]}]},
        {"manifest__json": [{"Config": "c", "Layers": [], "RepoTags": [5]}]},
        {"manifest__json": [{"Config": "c", "Layers": [], "RepoTags": "a:b"}]},
        {"index__json": DEEP},
        {"index__json": [1]},
        {"index__json": {"manifests": 5}},
        {"index__json": {"manifests": [{"digest": 5}]}},
        {"index__json": {"manifests": [{"digest": {}}]}},
        {"index__json": {"manifests": [{"digest": "m"}]}, "m": [1]},
        {"index__json": {"manifests": [{"digest": "m"}]}, "m": {"config": 5, "layers": []}},
        {"index__json": {"manifests": [{"digest": "m"}]}, "m": {"config": {"digest": []}, "layers": []}},
        {"index__json": {"manifests": [{"digest": "m"}]}, "m": {"config": {"digest": "c"}, "layers": [5]}},
    ],
    ids=lambda documents: json.dumps(documents, default=lambda _: "deep")[:70],
)
def test_a_manifest_of_another_form_is_bad_input(tmp_path: Path, documents: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="does not hold exactly one image"):
        facts_of(archive_of(tmp_path / "x.tar", **documents))


@pytest.mark.parametrize(
    "configuration",
    [
        DEEP,
        [1],
        {"rootfs": 5},
        {"rootfs": {"diff_ids": 5}},
        {"rootfs": {"diff_ids": [{}]}},
        CONFIGURATION | {"config": [1]},
        CONFIGURATION | {"config": {"Labels": [1]}},
        CONFIGURATION | {"config": {"Labels": {"bench.variant": {}}}},
        CONFIGURATION | {"history": 5},
        CONFIGURATION | {"history": [5]},
        CONFIGURATION | {"history": [{"created_by": 5}]},
    ],
    ids=lambda configuration: str(configuration)[:70],
)
def test_a_configuration_of_another_form_is_refused(tmp_path: Path, configuration: object) -> None:
    image = archive_of(tmp_path / "x.tar", manifest__json=[{"Config": "c", "Layers": []}], c=configuration)
    with pytest.raises(VerificationFailed, match="its configuration is not that of an image"):
        facts_of(image)


def test_fields_that_are_null_or_that_only_engines_know_are_left_out(tmp_path: Path) -> None:
    entry = {"Config": "c", "Layers": [], "RepoTags": None, "LayerSources": {}}
    configuration = {"rootfs": {"diff_ids": [], "type": "layers"}, "config": {"Labels": None}, "os": "linux"}
    found = facts_of(archive_of(tmp_path / "x.tar", manifest__json=[entry], c=configuration))
    assert (found.tags, found.labels, found.config.stages) == ((), {}, ())


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    image = make_image(tmp_path, [{"usr/a": bytes(100_000)}])
    image.write_bytes(image.read_bytes()[:50_000])
    with pytest.raises((BadInput, VerificationFailed)):
        facts_of(image)


def test_a_file_comes_from_the_last_layer_that_has_it(tmp_path: Path) -> None:
    image = make_image(tmp_path, [{"etc/x": b"old"}, {"etc/x": b"new"}, {"usr/y": b""}])
    assert extract(image, facts_of(image), "etc/x") == b"new"
    with pytest.raises(BadInput, match="has no file /etc/z"):
        extract(image, facts_of(image), "etc/z")


def repacked(image: Path, target: Path, prefix: str = "", **changes: bytes) -> Path:
    """Copy an archive with the bytes of some members replaced."""
    with tarfile.open(image) as old, tarfile.open(target, "w") as new:
        for member in old:
            data = changes.get(member.name, old.extractfile(member).read())  # type: ignore[union-attr]
            member.name, member.size = f"{prefix}{member.name}", len(data)
            new.addfile(member, io.BytesIO(data))
    return target


def test_data_after_a_compressed_layer_belongs_to_the_layer(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    found = facts_of(image).layers[0]
    pack_layer(image, found, tmp_path / "packed.gz")
    data = gzip.decompress((tmp_path / "packed.gz").read_bytes())
    in_two = gzip.compress(data[:700]) + gzip.compress(data[700:])
    same = repacked(image, tmp_path / "in-two.tar", **{found.name: in_two})
    assert facts_of(same).identity == facts_of(image).identity
    more = gzip.compress(data) + gzip.compress(layer({"etc/more": b"1"}))
    with pytest.raises(VerificationFailed, match="layer 1 is not the one that its configuration names"):
        facts_of(repacked(image, tmp_path / "more.tar", **{found.name: more}))
    with pytest.raises(BadInput, match="is not a saved image"):
        facts_of(repacked(image, tmp_path / "rest.tar", **{found.name: gzip.compress(data) + b"rest"}))


def test_a_recompressed_layer_does_not_depend_on_its_first_compression(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    (found,) = facts_of(image).layers
    ours = pack_layer(image, found, tmp_path / "ours.gz")
    theirs = gzip.compress(gzip.decompress((tmp_path / "ours.gz").read_bytes()), 1)
    other = repacked(image, tmp_path / "other.tar", **{found.name: theirs})
    (compressed,) = facts_of(other).layers
    pack_layer(other, compressed, tmp_path / "copied.gz")
    assert (tmp_path / "copied.gz").read_bytes() == theirs
    assert pack_layer(other, compressed, tmp_path / "again.gz", recompress=True) == ours
    assert (tmp_path / "again.gz").read_bytes() == (tmp_path / "ours.gz").read_bytes()


def test_an_image_repacked_by_tar_has_the_same_identity(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES, {"etc/x": b"1"}])
    prefixed = repacked(image, tmp_path / "prefixed.tar", prefix="./")
    found = facts_of(prefixed)
    assert found.identity == facts_of(image).identity
    assert extract(prefixed, found, "etc/x") == b"1"
    pack_layer(prefixed, found.layers[1], tmp_path / "packed.gz")
    assert normalised(gzip.decompress((tmp_path / "packed.gz").read_bytes())) == normalised(
        layer({"etc/x": b"1"})
    )

"""An image's identity is computed from its bytes, which hold no trace of the build machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.base.errors import BadInput, VerificationFailed
from bench.images.archive import (
    Blob,
    ManifestLayer,
    add_file,
    blob_of,
    extract,
    facts_of,
    manifest_digest,
    oci_manifest,
    open_layer,
    pack_layer,
    pack_layers,
    read_configuration,
    write_archive,
)
from bench.images.kernel_layer import is_layer, read_layer
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
        {"manifest__json": [{"Layers": []}]},
        {"manifest__json": [{"Config": "c"}]},
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
        {},
        {"rootfs": 5},
        {"rootfs": {}},
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


# --- each form of an archive ------------------------------------------------------------------------------


def saved(path: Path, *members: tuple[str, bytes | str | None]) -> Path:
    """Write a tar: a file for bytes, a hard link for "=NAME", a link for another text, or a folder."""
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                hard = content.startswith("=")
                entry.type, entry.linkname = (
                    (tarfile.LNKTYPE if hard else tarfile.SYMTYPE),
                    content.lstrip("="),
                )
                archive.addfile(entry)
            elif content is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


ONE = layer({"etc/x": b"1"})
ONE_ID = f"sha256:{hashlib.sha256(ONE).hexdigest()}"
CONFIG = json.dumps({"rootfs": {"diff_ids": [ONE_ID]}}).encode()


def listing(*layers: str) -> bytes:
    return json.dumps([{"Config": "c", "Layers": list(layers), "RepoTags": ["a:1", "b:2"]}]).encode()


@pytest.mark.parametrize(
    ("name", "link"),
    [("1/layer.tar", "../0/layer.tar"), ("1/2/layer.tar", "../../0/layer.tar"), ("0/b.tar", "layer.tar"),
     ("layer.tar", "=./0/layer.tar"), ("layer.tar", "=0/layer.tar")],
)  # fmt: skip
def test_an_engine_may_link_to_a_layer(tmp_path: Path, name: str, link: str) -> None:
    image = saved(
        tmp_path / "x.tar", ("0", None), ("0/layer.tar", ONE), (name, link), ("c", CONFIG),
        ("manifest.json", listing(name)),
    )  # fmt: skip
    found = facts_of(image)
    assert (found.layers[0].name, found.layers[0].diff_id, found.tags) == (
        "0/layer.tar",
        ONE_ID,
        ("a:1", "b:2"),
    )
    assert (found.layers[0].size, found.layers[0].compressed) == (len(ONE), False)


def test_a_link_is_relative_to_its_own_folder(tmp_path: Path) -> None:
    image = saved(
        tmp_path / "x.tar", ("1/2/a.tar", ONE), ("1/2/b.tar", "a.tar"), ("c", CONFIG),
        ("manifest.json", listing("1/2/b.tar")),
    )  # fmt: skip
    assert facts_of(image).layers[0].name == "1/2/a.tar"


def test_a_layer_that_a_manifest_names_and_nobody_has_is_told(tmp_path: Path) -> None:
    for missing in ("layer.tar", "c"):
        members = [(name, data) for name, data in (("layer.tar", ONE), ("c", CONFIG)) if name != missing]
        image = saved(tmp_path / "x.tar", *members, ("manifest.json", listing("layer.tar")))
        with pytest.raises(VerificationFailed, match=f"lacks {missing}, which its manifest names"):
            facts_of(image)


def test_more_layers_than_are_named_are_told(tmp_path: Path) -> None:
    image = saved(tmp_path / "x.tar", ("l", ONE), ("c", CONFIG), ("manifest.json", listing("l", "l")))
    with pytest.raises(VerificationFailed, match="has 2 layers, its configuration names 1"):
        facts_of(image, "my image")


def test_the_second_layer_that_differs_is_named_by_its_number(tmp_path: Path) -> None:
    config = json.dumps({"rootfs": {"diff_ids": [ONE_ID, "sha256:x"]}}).encode()
    image = saved(tmp_path / "x.tar", ("l", ONE), ("c", config), ("manifest.json", listing("l", "l")))
    with pytest.raises(VerificationFailed, match=f"my image: layer 2 is not the one .*: {ONE_ID}"):
        facts_of(image, "my image")


def test_several_images_in_one_file_are_refused(tmp_path: Path) -> None:
    for document in (listing("l").replace(b"}]", b"}, {}]"), b"[]"):
        with pytest.raises(BadInput, match="does not hold exactly one image"):
            facts_of(saved(tmp_path / "x.tar", ("l", ONE), ("c", CONFIG), ("manifest.json", document)))


def test_a_layer_in_zstd_is_refused_with_advice(tmp_path: Path) -> None:
    image = saved(
        tmp_path / "x.tar",
        ("l", b"\x28\xb5\x2f\xfd" + bytes(9)),
        ("c", CONFIG),
        ("manifest.json", listing("l")),
    )
    with pytest.raises(BadInput, match="l is compressed with zstd, which is not supported") as caught:
        facts_of(image)
    assert caught.value.advice == "save it again: bench image save"


@pytest.mark.parametrize(("size", "is_kept"), [(4 * 2**20, True), (4 * 2**20 + 1, False)])
def test_a_configuration_has_at_most_4_mib(tmp_path: Path, size: int, is_kept: bool) -> None:
    config = CONFIG.ljust(size)
    image = saved(tmp_path / "x.tar", ("l", ONE), ("c", config), ("manifest.json", listing("l")))
    if is_kept:
        assert facts_of(image).config_bytes == config
        return
    with pytest.raises(VerificationFailed, match="its configuration is not that of an image"):
        facts_of(image)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.tar", "cannot be opened: No such file or directory"),
        (".", "is not a regular file"),
        ("x" * 300, "cannot be opened: File name too long"),
        ("/proc/self/mem", "cannot be read: Input/output error"),
    ],
)
def test_a_path_without_an_image_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        facts_of(tmp_path / name)
    assert (caught.value.message, caught.value.where) == (reason, str(tmp_path / name))


@pytest.mark.parametrize("read", [is_layer, read_layer, facts_of])
def test_nothing_waits_for_the_writer_of_a_named_pipe(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    if read is is_layer:
        assert read(path) is False
        return
    with pytest.raises(BadInput, match="is not a regular file"):
        read(path)


@pytest.mark.parametrize("full", [False, True], ids=["the archive cannot be read", "the target is full"])
def test_an_error_of_the_target_is_not_said_of_the_archive(tmp_path: Path, full: bool) -> None:
    """The archive that is read, and the file that is written, may be on different disks."""
    image = saved(tmp_path / "x.tar", ("l", ONE), ("c", CONFIG), ("manifest.json", listing("l")))
    layer = facts_of(image).layers[0]
    source, target = (image, Path("/dev/full")) if full else (Path("/proc/self/mem"), tmp_path / "out")
    with pytest.raises(OSError if full else BadInput) as caught:
        pack_layer(source, layer, target)
    assert ("No space left" if full else "/proc/self/mem: cannot be read") in str(caught.value)


def test_a_configuration_has_layers_labels_and_the_commands_that_made_it() -> None:
    document = {
        "rootfs": {"diff_ids": ["a", "b"]}, "config": {"Labels": {"k": "v"}},
        "history": [{"created_by": "one"}, {}, {"created_by": None}, {"created_by": "two"}],
    }  # fmt: skip
    found = read_configuration(json.dumps(document).encode())
    assert (found.diff_ids, found.labels, found.stages) == (("a", "b"), {"k": "v"}, ("one", "", "", "two"))


# --- parts of an archive ------------------------------------------------------------------------------------


def compressed(image: Path, target: Path, level: int = 1) -> Path:
    """Copy an archive whose first layer is compressed."""
    (first, *_) = facts_of(image).layers
    with open_layer(image, first) as plain:
        data = plain.read()
    return repacked(image, target, **{first.name: gzip.compress(data, level)})


def test_a_layer_is_read_without_its_compression(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    packed = compressed(image, tmp_path / "packed.tar")
    for path in (image, packed):
        with open_layer(path, facts_of(path).layers[0]) as opened, tarfile.open(fileobj=opened) as archive:
            assert archive.getnames() == list(FILES)
    assert extract(packed, facts_of(packed), "usr/b") == b"two"


def test_of_two_files_of_one_name_the_last_one_counts(tmp_path: Path) -> None:
    """An archive may be appended to, and its names may begin with ./ or not."""
    image = saved(
        tmp_path / "x.tar", ("l", b"old"), ("c", CONFIG), ("manifest.json", listing("l")), ("./l", ONE),
    )  # fmt: skip
    found = facts_of(image)
    assert extract(image, found, "etc/x") == b"1"
    blob = blob_of(image, found.layers[0])
    assert image.read_bytes()[blob.start : blob.start + blob.size] == ONE


def test_a_file_that_an_image_lacks_is_named_with_advice(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    with pytest.raises(BadInput, match="has no file /usr") as caught:
        extract(image, facts_of(image), "usr")  # a folder
    assert (caught.value.where, caught.value.advice) == (str(image), "rebuild it with bench image build")


def test_a_layer_is_written_from_where_it_lies(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES, {"etc/x": b"1"}])
    packed = compressed(image, tmp_path / "packed.tar")
    found = facts_of(packed)
    blobs = [blob_of(packed, each) for each in found.layers]
    assert [blob.compressed for blob in blobs] == [True, False]
    data = [packed.read_bytes()[blob.start : blob.start + blob.size] for blob in blobs]
    assert [blob.digest for blob in blobs] == [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in data]
    assert [blob.diff_id for blob in blobs] == list(found.identity.diff_ids)
    write_archive(tmp_path / "again.tar", found.config_bytes, blobs, "bench:test")
    assert facts_of(tmp_path / "again.tar").identity == found.identity


def test_a_blob_is_a_file_or_a_part_of_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    blobs = [Blob(path, "", "", False), Blob(path, "", "", False, 3), Blob(path, "", "", False, 3, 2)]
    assert [blob.size for blob in blobs] == [10, 7, 2]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, source in enumerate((*blobs, path, b"bytes")):
            add_file(archive, str(number), source)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        read = [(member.mode, member.mtime, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    contents = [b"0123456789", b"3456789", b"34", b"0123456789", b"bytes"]
    assert read == [(0o644, 0, each) for each in contents]


def test_a_compressed_layer_has_neither_name_nor_time(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    (found,) = facts_of(image).layers
    digest = pack_layer(image, found, tmp_path / "packed.gz")
    data = (tmp_path / "packed.gz").read_bytes()
    assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert data[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    with open_layer(image, found) as plain:
        assert data[10:] == gzip.compress(plain.read(), 6, mtime=0)[10:]


@pytest.mark.parametrize("recompress", [False, True])
def test_all_layers_are_compressed_in_their_order(tmp_path: Path, recompress: bool) -> None:
    image = make_image(tmp_path, [FILES, {"etc/x": b"1"}])
    packed = compressed(image, tmp_path / "packed.tar", 9)
    found, told = facts_of(packed), list[str]()
    blobs = pack_layers(packed, found, tmp_path, recompress=recompress, say=told.append)
    assert [blob.path.name for blob in blobs] == ["0.gz", "1.gz"]
    assert sorted(told) == ["layer 1 of 2", "layer 2 of 2"]
    assert [blob.diff_id for blob in blobs] == list(found.identity.diff_ids)
    assert all(
        blob.compressed and blob.digest == f"sha256:{hashlib.sha256(blob.path.read_bytes()).hexdigest()}"
        for blob in blobs
    )
    with tarfile.open(packed) as archive:
        as_it_was = archive.extractfile(found.layers[0].name).read()  # type: ignore[union-attr]
    assert (blobs[0].path.read_bytes() == as_it_was) != recompress


def test_an_image_has_a_digest_in_a_registry_once_all_layers_are_compressed(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES, {"etc/x": b"1"}])
    half = compressed(image, tmp_path / "half.tar")
    assert manifest_digest(half, facts_of(half)) is None
    found = facts_of(half)
    blobs = pack_layers(half, found, tmp_path, recompress=False)
    write_archive(tmp_path / "whole.tar", found.config_bytes, blobs, "bench:test")
    layers = [ManifestLayer(blob.digest, blob.size) for blob in blobs]
    expected = hashlib.sha256(oci_manifest(found.config_bytes, layers)).hexdigest()
    whole = tmp_path / "whole.tar"
    assert manifest_digest(whole, facts_of(whole)) == f"sha256:{expected}"


def test_an_archive_is_docker_s_and_an_oci_layout(tmp_path: Path) -> None:
    image = make_image(tmp_path, [FILES])
    with tarfile.open(image) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    found = facts_of(image)
    config, (blob,) = found.identity.config.removeprefix("sha256:"), found.layers
    assert list(read) == sorted(read)
    assert json.loads(read["manifest.json"]) == [
        {"Config": f"blobs/sha256/{config}", "RepoTags": ["bench:test"], "Layers": [blob.name]}
    ]
    assert json.loads(read["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(read["index.json"])
    (entry,) = index["manifests"]
    manifest = read["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
    assert index["schemaVersion"] == 2 and entry["size"] == len(manifest)
    assert entry["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "bench:test"}
    assert manifest == oci_manifest(
        found.config_bytes, [ManifestLayer(blob.diff_id, blob.size, compressed=False)]
    )
    assert read[f"blobs/sha256/{config}"] == found.config_bytes


def test_a_manifest_is_the_one_of_oci() -> None:
    kind = "application/vnd.oci.image"
    assert json.loads(
        oci_manifest(
            b"config", [ManifestLayer("sha256:a", 5), ManifestLayer("sha256:b", 6, compressed=False)]
        )
    ) == {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": {
            "mediaType": f"{kind}.config.v1+json",
            "digest": f"sha256:{hashlib.sha256(b'config').hexdigest()}",
            "size": 6,
        },
        "layers": [
            {"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": "sha256:a", "size": 5},
            {"mediaType": f"{kind}.layer.v1.tar", "digest": "sha256:b", "size": 6},
        ],
    }

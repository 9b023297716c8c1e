"""Kernel layers, rule by rule: members, modes, sizes, and the configuration with a layer and without it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import bench
from bench.base.errors import BadInput
from bench.base.kernel_list import KERNEL_LIST, CompiledWheel, KernelList
from bench.base.stamps import file_sha256
from bench.base.strict_json import canonical_json, pretty_json, to_json
from bench.images import kernel_layer
from bench.images.archive import Blob, ImageFacts, facts_of, read_configuration, write_archive
from bench.images.kernel_layer import (
    KernelLayer,
    add_kernels,
    below_kernels,
    is_layer,
    kernels_in,
    pack_kernels,
    read_layer,
    sbom_of,
    with_kernels,
)
from bench.images.locks import read_pins
from bench.images.normalise import configuration
from bench.images.variants import find_variant
from tests.environment.made_wheels import make_wheel
from tests.images.made_up_images import kinds_of_layers
from tests.images.made_up_images import layer as tar_of
from tests.images.stand_in_kernels import LABELS, SITE, TAGS, TORCH, make_plain

ROOT = Path(bench.__file__).parent.parent
CUDA13 = find_variant("cuda13")
PINS = read_pins(ROOT / CUDA13.lock)
WHEEL = CompiledWheel("mamba-ssm", "2.3.2.post1", "m.whl", "0" * 64, ("9.0",))
KERNELS = KernelList("cuda13", "3.11", "2.11.0", (WHEEL,), "bench/kernels/v1")


def write_layer(
    path: Path, kernels: KernelList = KERNELS, files: Mapping[str, bytes] | None = None, space: int = 0
) -> Path:
    """Write a layer as bench does, with these files; `space` blanks follow its list."""
    own: dict[str, Any] = {}
    for number, (name, data) in enumerate((files or {f"{SITE}/mamba_ssm/__init__.py": b""}).items()):
        source = path.with_name(f"{path.name}.{number}")
        source.write_bytes(data)
        own[name] = kernel_layer._File(source, executable=name.endswith(".so"))
    listed = pretty_json(to_json(kernels)) + b" " * space
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        kernel_layer._write(archive, own, listed)
    return path


# --- the files of a layer ----------------------------------------------------------------------------------


def test_folders_come_before_their_files_and_each_has_its_mode(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "k.tar", files={f"{SITE}/a/x.so": b"code", f"{SITE}/a/b.py": b"text"})
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        content = archive.extractfile(f"{SITE}/a/x.so")
        assert content is not None and content.read() == b"code"
    assert [(member.name, member.type, member.mode) for member in members] == [
        *(
            (name, tarfile.DIRTYPE, 0o755)
            for name in ("usr", "usr/local", "usr/local/lib", "usr/local/lib/python3.11", SITE, f"{SITE}/a")
        ),
        (f"{SITE}/a/b.py", tarfile.REGTYPE, 0o644),
        (f"{SITE}/a/x.so", tarfile.REGTYPE, 0o755),
        ("usr/share", tarfile.DIRTYPE, 0o755),
        ("usr/share/bench", tarfile.DIRTYPE, 0o755),
        (KERNEL_LIST, tarfile.REGTYPE, 0o644),
    ]
    found = read_layer(path)
    assert found.names == {f"{SITE}/a/b.py", f"{SITE}/a/x.so", KERNEL_LIST}
    assert found.folders == {member.name for member in members if member.isdir()}
    assert found.kernels == KERNELS


@pytest.mark.parametrize(
    ("name", "is_folder", "changes"),
    [
        ("file", False, True),
        ("file", True, True),
        ("folder", False, True),
        ("folder", True, False),
        ("other", False, False),
        ("other", True, False),
    ],
)
def test_a_layer_changes_what_has_the_name_of_its_file_or_in_another_form_of_its_folder(
    name: str, is_folder: bool, changes: bool
) -> None:
    own = KernelLayer(Path(), "sha256:1", KERNELS, frozenset({"file"}), frozenset({"folder"}))
    assert own.changes(name, is_folder=is_folder) == changes


def test_a_list_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    short = len(pretty_json(to_json(KERNELS)))
    most = write_layer(tmp_path / "most.tar", space=1_048_576 - short)
    assert read_layer(most).kernels == KERNELS
    with pytest.raises(BadInput, match="it has no list of kernels"):
        read_layer(write_layer(tmp_path / "more.tar", space=1_048_577 - short))


@pytest.mark.parametrize("mode", [0o100, 0o010, 0o001, 0o755])
def test_a_file_that_anybody_may_execute_is_executable(tmp_path: Path, mode: int) -> None:
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, {"mamba_ssm/x": b"", "mamba_ssm/y": b""})
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / "new.whl", "w") as new:
        for info in old.infolist():
            info.external_attr = (0o100000 | (mode if info.filename.endswith("/x") else 0o666)) << 16
            new.writestr(info, old.read(info.filename))
        new.writestr("mamba_ssm/empty/", b"")
    (tmp_path / "new.whl").replace(wheel)
    made = pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    with tarfile.open(made.path) as archive:
        assert archive.getmember(f"{SITE}/mamba_ssm/x").mode == 0o755
        assert archive.getmember(f"{SITE}/mamba_ssm/y").mode == 0o644
    assert not any("empty" in name for name in made.names | made.folders)


def test_a_large_file_is_whole_and_files_beside_the_packages_are_left_out(tmp_path: Path) -> None:
    large = bytes(range(256)) * 10_000  # more than is copied at a time
    data = "mamba_ssm-2.3.2.post1.data"
    files = {"mamba_ssm/large": large, f"{data}/data/share/x": b"", f"{data}/purelib/mamba_ssm/own": b"own"}
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, files)
    made = pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    with tarfile.open(made.path) as archive:
        content = archive.extractfile(f"{SITE}/mamba_ssm/large")
        assert content is not None and content.read() == large
    assert f"{SITE}/mamba_ssm/own" in made.names
    assert not any(name.startswith("share") for name in made.names)
    assert made.kernels == replace(
        KERNELS, wheels=(replace(WHEEL, file=wheel.name, sha256=made.kernels.wheels[0].sha256, code=()),)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.tar", wheel.name]


def test_wheels_are_unpacked_beside_the_layer_in_a_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only there is room for them."""
    made: list[Path] = []

    def folder(**where: Any) -> TemporaryDirectory[str]:
        own = TemporaryDirectory(**where)
        made.append(Path(own.name))
        return own

    monkeypatch.setattr(kernel_layer.tempfile, "TemporaryDirectory", folder)
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS)
    pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    (own,) = made
    assert own.parent == tmp_path and own.name.startswith("kernels-") and not own.exists()


def test_the_code_of_all_files_is_listed_once_and_by_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter([("9.0", "ptx 10.0"), ("10.0", "9.0"), ("8.0",), (), ()])
    monkeypatch.setattr(kernel_layer, "gpu_code", lambda path: next(codes))
    files = {f"mamba_ssm/{name}.so": b"" for name in "ab"}
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, files)
    made = pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    assert made.kernels.wheels[0].code[:2] == ("8.0", "9.0")
    assert set(made.kernels.wheels[0].code[2:]) == {"10.0", "ptx 10.0"}


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / f"mamba_ssm-2.3.2.post1-{TAGS}.whl"
    wheel.write_bytes(b"not a wheel")
    with pytest.raises(BadInput, match="is not a wheel: ") as caught:
        pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    assert caught.value.where == str(wheel)


@pytest.mark.parametrize(
    "name", ["mamba_ssm.zip", "mamba_ssm-2.3.2.post1.whl", "mamba_ssm-1-cp311-cp311-any.whl"]
)
def test_a_wheel_says_its_version_in_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"requirements\.lock has mamba-ssm 2\.3\.2\.post1"):
        pack_kernels({"mamba-ssm": tmp_path / name}, CUDA13, PINS, tmp_path / "k.tar")


def test_an_image_without_kernels_takes_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a compiled kernel of cpu: none"):
        pack_kernels(
            {"mamba-ssm": tmp_path / "m.whl"}, replace(CUDA13, name="cpu", kernels=()), PINS, tmp_path / "k"
        )
    with pytest.raises(BadInput, match=f"is not a compiled kernel of cuda13: {', '.join(CUDA13.kernels)}"):
        pack_kernels({"torch": tmp_path / "t.whl"}, CUDA13, PINS, tmp_path / "k")


@pytest.mark.parametrize(("glibc", "fits"), [("2_36", True), ("2_37", False)])
def test_a_wheel_needs_no_newer_glibc_than_debian_12_has(tmp_path: Path, glibc: str, fits: bool) -> None:
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", f"cp311-cp311-manylinux_{glibc}_x86_64")
    if fits:
        assert pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
    else:
        with pytest.raises(BadInput, match=r"does not fit the image: it needs glibc 2\.37") as caught:
            pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "k.tar")
        assert caught.value.advice == "compile it for Python 3.11"


# --- what belongs to a layer -------------------------------------------------------------------------------

ABOVE = {"usr", "usr/share", SITE}


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


FOLDER = {"type": tarfile.DIRTYPE, "mode": 0o755}


@pytest.mark.parametrize(
    "info",
    [
        member(f"{SITE}/a.py", mode=0o644),
        member(f"{SITE}/a.so", mode=0o755),
        member(KERNEL_LIST, mode=0o644),
        member(f"{SITE}/a.whx", mode=0o644),
        member("usr", **FOLDER),
        member(SITE, **FOLDER),
        member(f"{SITE}/a/b", **FOLDER),
    ],
    ids=lambda info: info.name,
)
def test_files_of_packages_their_folders_and_the_list_belong_to_a_layer(info: tarfile.TarInfo) -> None:
    assert kernel_layer._belongs(info, SITE, ABOVE)
    for owner in ("uid", "gid"):
        setattr(info, owner, 1)
        assert not kernel_layer._belongs(info, SITE, ABOVE)
        setattr(info, owner, 0)


@pytest.mark.parametrize(
    "info",
    [
        member(f"{SITE}/../x", mode=0o644),
        member(f"{SITE}//x", mode=0o644),
        member(f"{SITE}/./x", mode=0o644),
        member(f"./{SITE}/x", mode=0o644),
        member(f"{SITE}/x/", mode=0o644),
        member(f"{SITE}/.wh.x", mode=0o644),
        member(f"{SITE}/.wh.x/y", mode=0o644),
        member(f"{SITE}/.wh.x", **FOLDER),
        member(f"{SITE}x/y", mode=0o644),
        member("usr/share/bench/other.json", mode=0o644),
        member(SITE, mode=0o644),
        member(f"{SITE}/x", mode=0o645),
        member(f"{SITE}/x", mode=0o4755),
        member(f"{SITE}/x", mode=0o644, type=tarfile.SYMTYPE),
        member(f"{SITE}/x", mode=0o644, type=tarfile.LNKTYPE),
        member(f"{SITE}/x", mode=0o644, type=tarfile.CONTTYPE),
        member(f"{SITE}/x", mode=0o644, type=tarfile.FIFOTYPE),
        member("etc", **FOLDER),
        member(f"{SITE}x", **FOLDER),
        member(f"{SITE}/x", type=tarfile.DIRTYPE, mode=0o777),
        member("usr", type=tarfile.DIRTYPE, mode=0o644),
    ],
    ids=lambda info: f"{info.name} {info.mode:o} {info.type!r}",
)
def test_nothing_else_belongs_to_a_layer(info: tarfile.TarInfo) -> None:
    assert not kernel_layer._belongs(info, SITE, ABOVE)


def rewritten(path: Path, edit: Callable[[list[tuple[tarfile.TarInfo, bytes]]], Any]) -> Path:
    """Write the members of a layer again after an edit of them; in its place."""
    with tarfile.open(path) as old:
        members = [
            (info, file.read() if (file := old.extractfile(info)) else b"") for info in old.getmembers()
        ]
    edit(members)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as new:
        for info, data in members:
            new.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda members: members.reverse(), "has other bytes than bench writes"),
        (lambda members: members.append(members[-1]), "it has no list of kernels"),
        (lambda members: members.insert(0, members[0]), "has other bytes than bench writes"),
        (lambda members: members.pop(0), "lacks the folder usr$"),
        (lambda members: setattr(members[-1][0], "type", tarfile.DIRTYPE), "it has no list of kernels"),
        (lambda members: members.append((member("zz", mode=0o644), b"")), "has 'zz', which no kernel layer"),
    ],
    ids=["order", "two lists", "twice", "no folder", "a folder as list", "a stranger"],
)
def test_a_layer_has_each_member_once_and_in_order(
    tmp_path: Path, edit: Callable[[list[Any]], Any], why: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_layer(rewritten(write_layer(tmp_path / "k.tar"), edit))
    assert caught.value.where == str(tmp_path / "k.tar")
    assert why.removesuffix("$") in caught.value.message
    assert not why.endswith("$") or caught.value.message.endswith(why.removesuffix("$"))


def test_a_layer_in_another_form_of_tar_is_refused(tmp_path: Path) -> None:
    """A long name shows the difference."""
    path = write_layer(tmp_path / "k.tar", files={f"{SITE}/{'a' * 120}/b.py": b""})
    read_layer(path)
    with tarfile.open(path) as old, tarfile.open(tmp_path / "gnu.tar", "w", format=tarfile.GNU_FORMAT) as new:
        for info in old.getmembers():
            info.pax_headers = {}
            new.addfile(info, old.extractfile(info) if info.isreg() else None)
    with pytest.raises(BadInput, match="has other bytes than bench writes"):
        read_layer(tmp_path / "gnu.tar")


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        ([KERNEL_LIST], True),
        ([KERNEL_LIST, "a"], True),
        ([KERNEL_LIST, "manifest.json"], False),
        (["manifest.json"], False),
        (["a"], False),
    ],
)
def test_a_layer_is_known_by_its_list(tmp_path: Path, names: list[str], is_one: bool) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of(dict.fromkeys(names, b"")))
    assert is_layer(path) == is_one


def test_what_is_no_plain_tar_is_no_layer(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "k.tar")
    assert not is_layer(tmp_path / "nowhere")
    (tmp_path / "k.tgz").write_bytes(gzip.compress(path.read_bytes()))
    assert not is_layer(tmp_path / "k.tgz")
    with pytest.raises(BadInput, match="is not a kernel layer") as caught:
        read_layer(tmp_path / "k.tgz")
    assert caught.value.advice == "bench image kernels"


# --- configurations ----------------------------------------------------------------------------------------

CONFIG = {
    "architecture": "amd64",
    "config": {"User": "1:1", "Labels": {"bench.variant": "cuda13", "bench.without": "deepspeed mamba-ssm"}},
    "history": [{"created": time, "created_by": name} for name, time in (("a", "1"), ("b", "2"), ("c", "3"))],
    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digit * 64}" for digit in "124"]},
}
OWN = "sha256:" + "3" * 64


def test_a_layer_adds_its_digest_a_line_of_history_and_its_label() -> None:
    found = json.loads(with_kernels(canonical_json(CONFIG), OWN, KERNELS))
    assert found == {
        "architecture": "amd64",
        "config": {
            "User": "1:1",
            "Labels": {
                "bench.variant": "cuda13",
                "bench.without": "deepspeed",
                "bench.kernels": '{"mamba-ssm":["9.0"]}',
            },
        },
        "history": [
            *CONFIG["history"],  # type: ignore[misc]
            {"created": "3", "created_by": "kernels"},
        ],
        "rootfs": {"type": "layers", "diff_ids": [*CONFIG["rootfs"]["diff_ids"], OWN]},  # type: ignore[index]
    }  # fmt: skip


def test_an_image_that_then_has_all_kernels_says_of_none_that_it_is_missing() -> None:
    config = canonical_json(CONFIG).replace(b"deepspeed mamba-ssm", b"mamba-ssm")
    labels = json.loads(with_kernels(config, OWN, KERNELS))["config"]["Labels"]
    assert labels == {"bench.variant": "cuda13", "bench.kernels": '{"mamba-ssm":["9.0"]}'}
    without = canonical_json(CONFIG).replace(b'"bench.without":"deepspeed mamba-ssm"', b'"other":"x"')
    assert "bench.without" not in json.loads(with_kernels(without, OWN, KERNELS))["config"]["Labels"]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_plain(tmp_path)


@pytest.fixture
def layer(tmp_path: Path) -> KernelLayer:
    return read_layer(write_layer(tmp_path / "kernels.tar"))


@pytest.fixture
def whole(plain: Path, layer: KernelLayer, tmp_path: Path) -> Path:
    """An image with a kernel layer."""
    add_kernels(plain, facts_of(plain), layer, tmp_path / "whole.tar", "bench:own")
    return tmp_path / "whole.tar"


def test_an_image_with_a_layer_names_what_is_not_compressed(whole: Path) -> None:
    assert kinds_of_layers(whole) == ["application/vnd.oci.image.layer.v1.tar"] * 3


def test_the_image_below_a_layer_is_the_one_to_which_it_was_added(plain: Path, whole: Path) -> None:
    below, facts = facts_of(plain), facts_of(whole)
    found = below_kernels(facts)
    assert found is not None
    assert (found.config_bytes, found.identity, found.config) == (
        below.config_bytes, below.identity, below.config
    )  # fmt: skip
    assert len(facts.layers) == 3 and found.layers == facts.layers[:2]
    assert found.tags == facts.tags == ("bench:own",)
    assert [layer.compressed for layer in facts.layers] == [False] * 3


def changed(facts: ImageFacts, edit: Callable[[dict[str, Any]], Any], layers: int = 3) -> ImageFacts:
    """Return facts whose configuration was edited, with as many layers."""
    document = json.loads(facts.config_bytes)
    edit(document)
    config = canonical_json(document)
    return replace(
        facts, config_bytes=config, config=read_configuration(config), layers=(facts.layers * 2)[:layers]
    )


def test_only_a_last_layer_called_kernels_is_one(whole: Path) -> None:
    facts = facts_of(whole)
    assert below_kernels(changed(facts, lambda _: None)) is not None
    assert below_kernels(changed(facts, lambda _: None, layers=2)) is None
    assert below_kernels(changed(facts, lambda _: None, layers=4)) is None
    other = changed(facts, lambda document: document["history"][-1].update(created_by="other"))
    assert below_kernels(other) is None
    assert below_kernels(changed(facts, lambda document: document["history"].reverse())) is None
    assert below_kernels(changed(facts, lambda document: document["history"].clear(), layers=0)) is None


def test_an_image_tells_its_kernels_and_its_sbom_has_them(plain: Path, whole: Path) -> None:
    assert kernels_in(plain, facts_of(plain)) is None
    assert kernels_in(whole, facts_of(whole)) == KERNELS
    names = [part["name"] for part in json.loads(sbom_of(whole, facts_of(whole)))["components"]]
    assert names == ["torch", "mamba-ssm"]
    assert [part["name"] for part in json.loads(sbom_of(plain, facts_of(plain)))["components"]] == ["torch"]


def test_a_list_in_an_image_that_cannot_be_read_is_named(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_layer, "extract", lambda *_: b"{}")
    with pytest.raises(BadInput, match="has a list of kernels that cannot be read: ") as caught:
        kernels_in(whole, facts_of(whole))
    assert caught.value.where == str(whole)


# --- adding a layer ----------------------------------------------------------------------------------------


def refused(image: Path, facts: ImageFacts, layer: KernelLayer, why: str, where: Path) -> None:
    out = image.with_name("refused.tar")
    with pytest.raises(BadInput) as caught:
        add_kernels(image, facts, layer, out, "bench:own")
    assert (caught.value.message, caught.value.where) == (why, str(where))
    assert not out.exists()


def test_an_image_of_another_form_takes_no_layer(plain: Path, layer: KernelLayer) -> None:
    facts, why = facts_of(plain), "is not as bench image build and save write it"
    spaced = json.dumps(json.loads(facts.config_bytes)).encode()
    refused(plain, replace(facts, config_bytes=spaced), layer, why, plain)
    refused(plain, replace(facts, layers=facts.layers[:1]), layer, why, plain)
    short = changed(facts, lambda document: document["history"].pop(), layers=2)
    refused(plain, short, layer, why, plain)


def test_a_layer_is_for_one_variant_python_and_torch(plain: Path, layer: KernelLayer, tmp_path: Path) -> None:
    facts = facts_of(plain)
    for change, why in (
        ({"variant": "cuda12.8"}, "is for the variant cuda12.8, the image is cuda13"),
        ({"python": "3.12"}, "is for Python 3.12, images have 3.11"),
        ({"torch": "2.12.0"}, "was compiled for torch 2.12.0, the image has 2.11.0+cu130"),
        ({"torch": "+cu130"}, "was compiled for torch +cu130, the image has 2.11.0+cu130"),
    ):
        other = replace(layer, kernels=replace(KERNELS, **change))  # type: ignore[arg-type]
        refused(plain, facts, other, why, layer.path)


def test_an_image_that_is_whole_takes_no_kernel_again(
    whole: Path, layer: KernelLayer, tmp_path: Path
) -> None:
    refused(whole, facts_of(whole), layer, "has a kernel layer already", whole)
    for labels in ({"bench.without": "deepspeed"}, {"bench.without": ""}):
        image = make_plain(tmp_path, "own.tar", **labels)
        refused(image, facts_of(image), layer, "has mamba-ssm already", image)


def test_a_name_counts_however_the_image_spells_it(layer: KernelLayer, tmp_path: Path) -> None:
    sbom = json.dumps({"components": [TORCH]}).encode()
    files = {f"./{SITE}/mamba_ssm/__init__.py": b"", "usr/share/bench/sbom.cdx.json": sbom}
    (tmp_path / "layer").write_bytes(tar_of(files))
    digest = f"sha256:{file_sha256(tmp_path / 'layer')}"
    config = configuration({}, [digest], LABELS, ["all"], "2026-01-01T00:00:00Z")
    image = tmp_path / "spelt.tar"
    write_archive(image, config, [Blob(tmp_path / "layer", digest, digest, compressed=False)], "bench:test")
    why = f"has {SITE}/mamba_ssm/__init__.py, which the image has too"
    refused(image, facts_of(image), layer, why, layer.path)

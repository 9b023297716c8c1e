"""Kernel layers: made from wheels, read, and added to an image, whose identity follows from both digests."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.base.errors import BadInput
from bench.base.kernel_list import read_kernels
from bench.cli.main import main
from bench.images.archive import ImageFacts, facts_of, open_layer
from bench.images.attestation import Attested, attest_contents
from bench.images.kernel_layer import (
    KernelLayer,
    below_kernels,
    pack_kernels,
    read_layer,
    with_kernels,
)
from bench.images.locks import read_pins
from bench.images.sbom import python_versions
from bench.images.variants import find_variant
from bench.runner.run.bundle_parts import surroundings
from bench.signing.ssh_keys import PublicKey
from release.archives import extract_all
from tests.authority import RUN_KEY
from tests.environment.made_wheels import make_wheel, sha256_of
from tests.images.made_up_images import layer as tar_of
from tests.images.made_up_images import make_image
from tests.images.stand_in_kernels import LABELS, SITE, TAGS, TORCH, compiled_wheel, make_plain

ROOT = Path(bench.__file__).parent.parent
CUDA13 = find_variant("cuda13")
PINS = read_pins(ROOT / CUDA13.lock)
SBOM = json.dumps({"components": [TORCH]}).encode()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    compiled_wheel(folder, "mamba-ssm", "8.0", "9.0")
    compiled_wheel(folder, "causal-conv1d", "9.0")
    return folder


@pytest.fixture
def layer(wheels: Path, tmp_path: Path) -> KernelLayer:
    return pack_kernels(by_name(wheels), CUDA13, PINS, tmp_path / "kernels.tar")


def by_name(folder: Path) -> dict[str, Path]:
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def add(image: Path, layer: Path, *options: str) -> Path:
    out = image.parent / "with-kernels.tar"
    assert main(["image", "add", str(image), str(layer), "-o", str(out), *options]) == 0
    return out


# --- a layer ---------------------------------------------------------------------------------------------


def test_a_layer_lists_its_wheels_and_for_which_gpus_their_code_is(layer: KernelLayer, wheels: Path) -> None:
    kernels = layer.kernels
    assert (kernels.variant, kernels.python, kernels.torch) == ("cuda13", "3.11", "2.11.0")
    assert [(wheel.name, wheel.code) for wheel in kernels.wheels] == [
        ("causal-conv1d", ("9.0",)),
        ("mamba-ssm", ("8.0", "9.0")),
    ]
    assert {wheel.file: wheel.sha256 for wheel in kernels.wheels} == {
        path.name: sha256_of(path) for path in wheels.glob("*.whl")
    }


def test_the_digest_is_the_sha256_of_the_file_and_the_same_wherever_it_is_made(
    layer: KernelLayer, wheels: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(wheels, elsewhere)
    again = pack_kernels(by_name(elsewhere), CUDA13, PINS, tmp_path / "again.tar")
    assert again.digest == layer.digest == f"sha256:{hashlib.sha256(layer.path.read_bytes()).hexdigest()}"
    with tarfile.open(layer.path) as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.mtime) for m in members} == {(0, 0, "", 0)}


def test_what_a_layer_has_can_be_imported(layer: KernelLayer, tmp_path: Path) -> None:
    with tarfile.open(layer.path) as archive:
        extract_all(archive, tmp_path / "root")
    script = "import mamba_ssm, causal_conv1d, selective_scan_cuda; from importlib import metadata as m; "
    script += "print(selective_scan_cuda.__doc__, m.version('mamba-ssm'))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path / "root" / SITE)}
    )
    assert done.stdout == "stands in 2.3.2.post1\n"


def test_scripts_and_headers_of_wheels_are_left_out(tmp_path: Path) -> None:
    data = "deepspeed-0.19.8.data"
    files = {"deepspeed/a.py": b"", f"{data}/scripts/ds": b"#!python\n", f"{data}/headers/x.h": b""}
    wheel = make_wheel(tmp_path, "deepspeed", "0.19.8", TAGS, files)
    made = pack_kernels({"deepspeed": wheel}, CUDA13, PINS, tmp_path / "kernels.tar")
    packages = {name for name in made.names if name.startswith(SITE)}
    metadata = {f"{SITE}/deepspeed-0.19.8.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
    assert packages == {f"{SITE}/deepspeed/a.py", *metadata}
    assert made.kernels.wheels[0].code == ()


@pytest.mark.parametrize(
    ("project", "version", "tags", "why"),
    [
        ("torch", "2.11.0", TAGS, "is not a compiled kernel of cuda13"),
        ("mamba-ssm", "2.0", TAGS, "requirements.lock has mamba-ssm 2.3.2.post1"),
        ("mamba-ssm", "2.3.2.post1", "cp312-cp312-linux_x86_64", "it is for cp312-cp312, not Python 3.11"),
        ("mamba-ssm", "2.3.2.post1", "cp311-cp311-linux_aarch64", "not Linux on x86_64"),
        ("mamba-ssm", "2.3.2.post1", "cp311-cp311-manylinux_2_39_x86_64", "needs glibc 2.39"),
    ],
)
def test_wheels_that_do_not_fit_the_image_are_refused(
    tmp_path: Path, project: str, version: str, tags: str, why: str
) -> None:
    wheel = make_wheel(tmp_path, project, version, tags)
    with pytest.raises(BadInput, match=why):
        pack_kernels({project: wheel}, CUDA13, PINS, tmp_path / "kernels.tar")
    assert not (tmp_path / "kernels.tar").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_wheel_with_a_file_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, {name: b""})
    with pytest.raises(BadInput, match="outside of its folder"):
        pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "kernels.tar")


def test_two_wheels_with_one_file_are_refused(tmp_path: Path) -> None:
    wheels = {
        name: make_wheel(tmp_path, name, str(PINS[name].version), TAGS, {"shared.py": b""})
        for name in ("mamba-ssm", "causal-conv1d")
    }
    with pytest.raises(BadInput, match=r"has .*shared\.py, which another of these wheels has too"):
        pack_kernels(wheels, CUDA13, PINS, tmp_path / "kernels.tar")


def edited(layer: KernelLayer, edit: Callable[[tarfile.TarInfo], bool]) -> Path:
    """Write a copy of a layer without the members for which `edit`, which may change them, is False."""
    path = layer.path.with_name("edited.tar")
    with tarfile.open(layer.path) as old, tarfile.open(path, "w") as new:
        for member in old.getmembers():
            data = old.extractfile(member) if member.isreg() else None
            if edit(member):
                new.addfile(member, data if member.isreg() else None)
    return path


def renamed(name: str) -> Callable[[tarfile.TarInfo], bool]:
    def edit(member: tarfile.TarInfo) -> bool:
        if member.name.endswith("mamba_ssm/__init__.py"):
            member.name = name
        return True

    return edit


def changed(**fields: object) -> Callable[[tarfile.TarInfo], bool]:
    def edit(member: tarfile.TarInfo) -> bool:
        if member.name.endswith("mamba_ssm/__init__.py"):
            for name, value in fields.items():
                setattr(member, name, value)
        return True

    return edit


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (renamed("usr/bin/python3"), "usr/bin/python3"),
        (renamed(f"{SITE}/../../../../../etc/passwd"), "etc/passwd"),
        (renamed(f"./{SITE}/a.py"), "a.py"),
        (renamed(f"{SITE}/torch/.wh.__init__.py"), "wh.__init__"),
        (renamed(f"{SITE}/.wh..wh..opq"), "opq"),
        (renamed(f"{SITE}/causal_conv1d/__init__.py"), "has other bytes than bench writes"),
        (renamed(f"{SITE}/nowhere/a.py"), "lacks the folder .*nowhere"),
        (changed(type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0), "mamba_ssm/__init__.py"),
        (changed(type=tarfile.LNKTYPE, linkname="usr", size=0), "mamba_ssm/__init__.py"),
        (changed(mode=0o4755), "mamba_ssm/__init__.py"),
        (changed(uid=1000), "mamba_ssm/__init__.py"),
        (changed(mtime=1), "has other bytes than bench writes"),
        (changed(uname="somebody"), "has other bytes than bench writes"),
        (lambda member: not member.name.endswith("kernels.json"), "it has no list of kernels"),
    ],
)
def test_a_layer_has_nothing_but_files_of_packages(
    layer: KernelLayer, edit: Callable[[tarfile.TarInfo], bool], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        read_layer(edited(layer, edit))


def test_what_follows_the_end_of_a_layer_is_refused(layer: KernelLayer) -> None:
    with layer.path.open("ab") as file:
        file.write(tar_of({"usr/bin/python3": b"evil"}))
    with pytest.raises(BadInput, match="has other bytes than bench writes"):
        read_layer(layer.path)


@pytest.mark.parametrize(
    "listed", [b"{}", b"[]", b"\xff", b'{"schema": "bench/kernels/v2"}', b'{"schema": "bench/kernels/v1"}']
)
def test_a_list_of_another_form_is_refused(tmp_path: Path, listed: bytes) -> None:
    path = tmp_path / "kernels.tar"
    path.write_bytes(tar_of({"usr/share/bench/kernels.json": listed}))
    with pytest.raises(BadInput, match="is not a kernel layer"):
        read_layer(path)


WHEEL = {"name": "mamba-ssm", "version": "1", "file": "m.whl", "sha256": "0", "code": ["9.0"]}
LISTED = {"variant": "cuda13", "python": "3.11", "torch": "2.11.0", "wheels": [WHEEL]}
LISTED |= {"schema": "bench/kernels/v1"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"wheels": [WHEEL | {"name": "torch"}]}, "the wheel 'torch'"),
        ({"wheels": [WHEEL | {"name": "\x1b]0;t"}]}, "the wheel .*, and the kernels are"),
        ({"wheels": [WHEEL | {"code": ["9.0", "all"]}]}, "code for a kind of GPU that bench does not know"),
        ({"wheels": [WHEEL | {"version": "\x1b]0;t"}]}, "has characters that are not allowed"),
        ({"torch": "2.11.0\n"}, "has characters that are not allowed"),
        ({"python": "3.11/../../../bin"}, "has characters that are not allowed"),
    ],
)
def test_a_list_has_kernels_that_bench_knows_and_plain_names(change: dict[str, object], why: str) -> None:
    assert read_kernels(json.dumps(LISTED).encode()).wheels[0].name == "mamba-ssm"
    with pytest.raises(ValueError, match=why):
        read_kernels(json.dumps(LISTED | change).encode())


def test_a_layer_for_another_python_fits_no_image(
    layer: KernelLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tmp_path / "newer.tar"
    with tarfile.open(layer.path) as old, tarfile.open(newer, "w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name.replace("3.11", "3.12")):
            data = old.extractfile(member)
            content = data.read().replace(b'"python": "3.11"', b'"python": "3.12"') if data else b""
            member.name = member.name.replace("python3.11", "python3.12")
            new.addfile(member, io.BytesIO(content) if data else None)
    assert read_layer(newer).kernels.python == "3.12"
    out = tmp_path / "out.tar"
    assert main(["image", "add", str(make_plain(tmp_path)), str(newer), "-o", str(out)]) == 2
    assert "is for Python 3.12, images have 3.11" in capsys.readouterr().err


def test_a_file_that_is_no_tar_is_no_layer(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 2000)
    with pytest.raises(BadInput, match="is not a kernel layer"):
        read_layer(tmp_path / "x")
    with pytest.raises(BadInput, match="cannot be opened: No such file"):
        read_layer(tmp_path / "nowhere")


# --- an image with a layer -------------------------------------------------------------------------------


def test_the_identity_of_an_image_with_kernels_follows_from_the_two_digests(
    layer: KernelLayer, tmp_path: Path
) -> None:
    plain = make_plain(tmp_path)
    below = facts_of(plain)
    facts = facts_of(add(plain, layer.path))
    expected = with_kernels(below.config_bytes, layer.digest, layer.kernels)
    assert facts.identity.config == f"sha256:{hashlib.sha256(expected).hexdigest()}"
    assert facts.identity.diff_ids == (*below.identity.diff_ids, layer.digest)
    assert facts.labels["bench.without"] == "deepspeed flash-attn"
    code = {"causal-conv1d": ["9.0"], "mamba-ssm": ["8.0", "9.0"]}
    assert json.loads(facts.labels["bench.kernels"]) == code
    found = below_kernels(facts)
    assert found is not None and found.identity == below.identity
    assert below_kernels(below) is None


def test_compressed_and_plain_images_give_the_same_image(layer: KernelLayer, tmp_path: Path) -> None:
    plain = make_plain(tmp_path)
    packed = tmp_path / "packed.tar"
    assert main(["image", "save", str(plain), "-o", str(packed)]) == 0
    identity = facts_of(add(plain, layer.path)).identity
    facts = facts_of(add(packed, layer.path))
    assert facts.identity == identity
    assert [each.compressed for each in facts.layers] == [True, True, False]


def test_the_layers_below_are_the_same_bytes(layer: KernelLayer, tmp_path: Path) -> None:
    plain = make_plain(tmp_path)
    out = add(plain, layer.path)

    def data(path: Path, facts: ImageFacts, number: int) -> bytes:
        with open_layer(path, facts.layers[number]) as file:
            return file.read()

    before, after = facts_of(plain), facts_of(out)
    assert [data(out, after, n) for n in (0, 1)] == [data(plain, before, n) for n in (0, 1)]
    assert data(out, after, 2) == layer.path.read_bytes()


def test_the_oci_manifest_states_the_size_of_each_layer_s_blob(layer: KernelLayer, tmp_path: Path) -> None:
    with tarfile.open(add(make_plain(tmp_path), layer.path)) as archive:

        def document(name: str) -> Any:
            with archive.extractfile(name) as file:  # type: ignore[union-attr]
                return json.load(file)

        def blob(digest: str) -> str:
            return f"blobs/{digest.replace(':', '/')}"

        manifest = document(blob(document("index.json")["manifests"][0]["digest"]))
        stated = [each["size"] for each in manifest["layers"]]
        assert stated == [archive.getmember(blob(each["digest"])).size for each in manifest["layers"]]


def test_id_tells_layers_and_images_with_and_without_kernels(
    layer: KernelLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = make_plain(tmp_path)
    out = add(plain, layer.path)
    capsys.readouterr()
    assert main(["image", "id", str(layer.path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [layer.digest]
    assert "mamba-ssm 2.3.2.post1: code for 8.0, 9.0" in printed.err
    assert "kernel layer for variant cuda13, Python 3.11, torch 2.11.0" in printed.err
    assert main(["image", "id", str(layer.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == layer.digest
    assert main(["image", "id", str(out)]) == 0
    assert f"on {facts_of(plain).identity.config}" in capsys.readouterr().err
    assert main(["image", "id", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["without_kernels"] == facts_of(plain).identity.config


def test_the_sbom_of_an_image_has_the_wheels_of_its_layer(
    layer: KernelLayer, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = add(make_plain(tmp_path), layer.path)
    capfdbinary.readouterr()
    assert main(["image", "sbom", str(out)]) == 0
    document = json.loads(capfdbinary.readouterr().out)
    assert python_versions(document) == {
        "torch": "2.11.0+cu130", "mamba-ssm": "2.3.2.post1", "causal-conv1d": "1.7.0"
    }  # fmt: skip
    assert document["components"][-1]["hashes"][0]["content"] == layer.kernels.wheels[-1].sha256


def test_a_bundle_lists_the_wheels_of_the_layer_that_the_run_was_in(
    layer: KernelLayer, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    with tarfile.open(layer.path) as archive:
        extract_all(archive, root)
    assert surroundings(tmp_path, root) == {}
    listed = root / "usr/share/bench/sbom.cdx.json"
    listed.write_text(json.dumps({"components": [TORCH]}))
    with_layer = json.loads(surroundings(tmp_path, root)["sbom.cdx.json"])
    assert python_versions(with_layer).keys() == {"torch", "mamba-ssm", "causal-conv1d"}
    (root / "usr/share/bench/kernels.json").unlink()
    assert surroundings(tmp_path, root) == {"sbom.cdx.json": listed.read_bytes()}


def test_attestations_of_an_image_hold_for_it_with_a_layer(
    layer: KernelLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = make_plain(tmp_path)
    attested = Attested(facts_of(plain), json.dumps({"components": [TORCH]}).encode(), None)
    (tmp_path / "contents.json").write_bytes(attest_contents(attested, RUN_KEY))
    (tmp_path / "run.pub").write_text(PublicKey.of(RUN_KEY).line() + "\n")
    out = add(plain, layer.path)
    capsys.readouterr()
    given = [str(out), str(tmp_path / "contents.json"), "--key", str(tmp_path / "run.pub")]
    assert main(["image", "verify", *given]) == 0
    printed = capsys.readouterr()
    assert f"image      {facts_of(plain).identity.config}" in printed.out
    assert f"the kernel layer {layer.digest} is not attested" in printed.err


def image_of_other_torch(folder: Path) -> Path:
    return make_plain(folder, torch=TORCH | {"version": "2.10.0"})


def image_without_torch(folder: Path) -> Path:
    return make_plain(folder, torch={"name": "numpy", "version": "2", "purl": "pkg:pypi/numpy@2"})


def image_of_other_variant(folder: Path) -> Path:
    return make_plain(folder, **{"bench.variant": "cuda12.8"})


def image_with_its_own_kernel(folder: Path) -> Path:
    return make_plain(folder, **{"bench.without": "flash-attn mamba-ssm"})


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (image_of_other_torch, "was compiled for torch 2.11.0, the image has 2.10.0"),
        (image_without_torch, "was compiled for torch 2.11.0, the image has none"),
        (image_of_other_variant, "is for the variant cuda13, the image is cuda12.8"),
        (image_with_its_own_kernel, "has causal-conv1d already"),
    ],
)
def test_a_layer_is_added_only_to_an_image_that_it_was_compiled_for(
    layer: KernelLayer,
    tmp_path: Path,
    image: Callable[[Path], Path],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.tar"
    assert main(["image", "add", str(image(tmp_path)), str(layer.path), "-o", str(out)]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_a_layer_changes_no_file_of_the_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, {"torch/__init__.py": b"evil = 1\n"})
    layer = pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "kernels.tar")
    out = tmp_path / "out.tar"
    assert main(["image", "add", str(make_plain(tmp_path)), str(layer.path), "-o", str(out)]) == 2
    assert f"has {SITE}/torch/__init__.py, which the image has too" in capsys.readouterr().err


@pytest.mark.parametrize(
    "files", [{"torch": b"in place of a folder"}, {"torch/__init__.py/a.py": b"a folder in place of a file"}]
)
def test_a_layer_puts_no_file_in_place_of_a_folder_and_no_folder_in_place_of_a_file(
    tmp_path: Path, files: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = make_image(
        tmp_path,
        [{f"{SITE}/torch": None, f"{SITE}/torch/__init__.py": b""}, {"usr/share/bench/sbom.cdx.json": SBOM}],
        labels=LABELS,
    )
    wheel = make_wheel(tmp_path, "mamba-ssm", "2.3.2.post1", TAGS, files)
    layer = pack_kernels({"mamba-ssm": wheel}, CUDA13, PINS, tmp_path / "kernels.tar")
    out = tmp_path / "out.tar"
    assert main(["image", "add", str(plain), str(layer.path), "-o", str(out)]) == 2
    assert "which the image has too" in capsys.readouterr().err


def test_an_image_has_one_kernel_layer(
    layer: KernelLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = add(make_plain(tmp_path), layer.path)
    assert main(["image", "add", str(out), str(layer.path), "-o", str(tmp_path / "two.tar")]) == 2
    assert "has a kernel layer already" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["", "{", "[]", '{"mamba-ssm": 1}', "\\x1b]0;t"])
def test_an_image_whose_label_lies_is_an_image_without_a_layer(tmp_path: Path, label: str) -> None:
    facts = facts_of(make_plain(tmp_path, **{"bench.kernels": label}))
    assert below_kernels(facts) is None


# --- the command -----------------------------------------------------------------------------------------


def test_wheels_that_somebody_compiled_become_a_layer(
    wheels: Path, layer: KernelLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "kernels.tar"
    command = ["image", "kernels", "cuda13", "--source", str(ROOT), "--wheels", str(wheels), "-o", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out.split() == [layer.digest]
    assert out.read_bytes() == layer.path.read_bytes()


def test_a_folder_of_wheels_names_each_kernel_once(
    wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["image", "kernels", "cuda13", "--source", str(ROOT), "--wheels"]
    assert main([*command, str(tmp_path)]) == 2
    assert "has no wheel of cuda13's kernels" in capsys.readouterr().err
    shutil.copytree(wheels, tmp_path / "two")
    make_wheel(tmp_path / "two", "mamba-ssm", "2.3.2.post1", "cp312-cp312-linux_x86_64")
    assert main([*command, str(tmp_path / "two")]) == 2
    assert "cp311-linux_x86_64.whl and" in capsys.readouterr().err

"""Each step of building an image, with stand-ins for buildah, mmdebstrap and the index of packages."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench
from bench import __version__
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.stamps import sha256
from bench.images import build_image, debian_base
from bench.images.archive import extract, facts_of, open_layer
from bench.images.build_image import BuildInputs, buildah, check_prerequisites, context, described, labels
from bench.images.debian_packages import Deb
from bench.images.locks import read_pins
from bench.images.variants import find_variant, images
from tests.images.made_up_images import kinds_of_layers, layer

ROOT = Path(bench.__file__).parent.parent
GIB = 2**30
STAGES = ("base", "libraries", "torch", "rest", "image")
OTHER_DEBIAN = f"tool 1 {'a' * 64} t/tool/tool_1_all.deb\n"


@pytest.fixture
def inputs(tmp_path: Path) -> BuildInputs:
    """Inputs of the CPU image in a small repository, with one package in the lock and one for the builder."""
    root = tmp_path / "root"
    (root / "docker").mkdir(parents=True)
    variant = find_variant("cpu")
    (root / variant.lock).parent.mkdir(parents=True, exist_ok=True)
    (root / variant.lock).write_text(f"torch==2.11.0 --hash=sha256:{'1' * 64}\n")
    (root / "docker/builder.lock").write_text(
        f"pip==26.0 --hash=sha256:{'2' * 64}\nwheel==1 --hash=sha256:{'3' * 64}\n"
    )
    (root / "docker/debian.lock").write_text(OTHER_DEBIAN)
    for name in ("Dockerfile", "docker/install.py", "docker/kernels.py", "README.md", "LICENSE"):
        (root / name).write_text(name)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "bench/__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "old.pyc", "__pycache__/x.py"):
        (root / "bench" / name).write_text("")
    return BuildInputs(root, variant, tmp_path / "work/cache", ("http://mirror",))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, first in PATH, with stand-ins that note how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    for name in ("unshare", "umount", "buildah", "mmdebstrap"):
        put(folder, name, 'echo "$(basename "$0") $*" >>"$NOTED"')
    return folder


def put(folder: Path, name: str, lines: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def noted(tmp_path: Path) -> list[str]:
    return (tmp_path / "noted").read_text().splitlines()


# --- before a build ----------------------------------------------------------------------------------------


@pytest.fixture
def able(programs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine that can build the CPU image: just enough space, and the rights of root."""
    machine: dict[str, Any] = {"free": 6 * GIB, "user": (0, 0)}
    monkeypatch.setattr(
        build_image.shutil,
        "disk_usage",
        lambda path: SimpleNamespace(free=machine["free"] if path.is_dir() else 0),
    )
    monkeypatch.setattr(build_image, "user_and_group", lambda: machine["user"])
    return machine


def test_a_machine_that_can_build_is_not_refused_and_has_a_folder_for_the_cache(
    able: dict[str, Any], inputs: BuildInputs
) -> None:
    check_prerequisites(inputs)
    check_prerequisites(inputs)
    assert inputs.cache.is_dir()
    able["user"] = None  # a system whose users have no numbers
    check_prerequisites(inputs)


def test_a_cuda_image_needs_40_gib_and_a_cpu_image_6(able: dict[str, Any], inputs: BuildInputs) -> None:
    able["free"] = 6 * GIB - 1
    with pytest.raises(EnvironmentCannot) as caught:
        check_prerequisites(inputs)
    assert caught.value.message == "6.0 GiB are free, a build needs 6.0 GiB"
    assert caught.value.where == str(inputs.cache)
    cuda = BuildInputs(inputs.root, find_variant("cuda13"), inputs.cache)
    able["free"] = 40 * GIB
    check_prerequisites(cuda)
    able["free"] -= 1
    with pytest.raises(EnvironmentCannot, match=r"^[^ ]+: 40.0 GiB are free, a build needs 40.0 GiB"):
        check_prerequisites(cuda)


@pytest.mark.parametrize("user", [(1000, 1000), (0, 1000), (1000, 0), (1, 0), (0, 1)])
def test_another_user_than_root_is_refused(
    able: dict[str, Any], inputs: BuildInputs, user: tuple[int, int]
) -> None:
    able["user"] = user
    with pytest.raises(EnvironmentCannot, match="building the Debian base needs root"):
        check_prerequisites(inputs)


@pytest.mark.parametrize("program", ["buildah", "mmdebstrap"])
def test_a_program_that_is_missing_is_named(
    able: dict[str, Any], inputs: BuildInputs, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_image.shutil, "which", lambda name: None if name == program else f"/bin/{name}")
    with pytest.raises(EnvironmentCannot) as caught:
        check_prerequisites(inputs)
    assert caught.value.message == f"{program} is not installed"
    assert caught.value.advice == f"apt-get install {program}"


def test_a_folder_without_a_dockerfile_is_no_repository(able: dict[str, Any], inputs: BuildInputs) -> None:
    (inputs.root / "Dockerfile").unlink()
    with pytest.raises(BadInput) as caught:
        check_prerequisites(inputs)
    assert (caught.value.message, caught.value.where) == ("holds no Dockerfile", str(inputs.root))


def test_another_system_than_linux_is_refused(
    able: dict[str, Any], inputs: BuildInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.base.operating_system.sys.platform", "darwin")
    with pytest.raises(EnvironmentCannot, match="building an image needs Linux"):
        check_prerequisites(inputs)


# --- what an image says of itself --------------------------------------------------------------------------


def digest(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_the_labels_of_an_image_are_all_of_these(inputs: BuildInputs) -> None:
    (inputs.root / "pyproject.toml").write_text('[project.urls]\nSource = "https://example.org/bench"\n')
    (inputs.root / "revision").write_text("c" * 40)
    oci = "org.opencontainers.image"
    always = {
        f"{oci}.title": "bench",
        f"{oci}.description": "How long would it take to pre-train this model on this machine?",
        f"{oci}.version": __version__,
        f"{oci}.licenses": "Apache-2.0",
        f"{oci}.base.name": f"debian:{images().suite}",
        f"{oci}.source": "https://example.org/bench",
        f"{oci}.revision": "c" * 40,
        "bench.debian": digest(inputs.root / "docker/debian.lock"),
    }
    found = dict(labels(inputs))
    created = found.pop(f"{oci}.created")
    assert created.endswith("Z") and len(created) == len("2026-01-01T00:00:00Z")
    assert found == always | {"bench.variant": "cpu", "bench.lock": digest(inputs.lock)}
    cuda = BuildInputs(inputs.root, find_variant("cuda13"), inputs.cache)
    shutil.copy(inputs.lock, cuda.lock)
    assert {name: value for name, value in labels(cuda).items() if name not in always} == {
        f"{oci}.created": created,
        "bench.variant": "cuda13",
        "bench.lock": digest(cuda.lock),
        "bench.cuda": "13.0",
        "bench.driver": "580.65.06",
        "bench.without": "causal-conv1d deepspeed flash-attn mamba-ssm",
    }


def test_image_json_has_the_variant_and_the_digests_of_the_locks(inputs: BuildInputs) -> None:
    assert json.loads(described(inputs)) == {
        "schema": "bench/image/v1",
        "variant": "cpu",
        "lock": digest(inputs.lock),
        "debian": digest(inputs.root / "docker/debian.lock"),
    }


# --- the context of a build --------------------------------------------------------------------------------


@pytest.fixture
def made(inputs: BuildInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand-ins for the index and for mmdebstrap, and the list of what they were asked for."""
    asked: list[tuple[Any, ...]] = []

    def wheels(pins: Sequence[Any], cache: Path, python: str) -> dict[str, Path]:
        asked.append(("wheels", [pin.name for pin in pins], cache, python))
        cache.mkdir(exist_ok=True)
        names = {"torch": "torch-2.11.0-py3-none-any.whl", "pip": "pip-26.0-py3-none-any.whl"}
        for name in names.values():
            (cache / name).write_bytes(name.encode())
        return {pin.name: cache / names[pin.name] for pin in pins}

    def fetch_debs(debs: Any, mirrors: Any, epoch: int, folder: Path) -> list[Path]:
        asked.append(("debs", debs, mirrors, epoch, folder))
        return [Path("a.deb")]

    def build_base(debs: Any, packages: Any, suite: str, out: Path, epoch: int) -> None:
        asked.append(("base", debs, packages, suite, epoch))
        out.write_bytes(layer({"usr/base": b"base"}))

    monkeypatch.setattr(build_image, "wheels", wheels)
    monkeypatch.setattr(build_image, "fetch_debs", fetch_debs)
    monkeypatch.setattr(build_image, "build_base", build_base)
    inputs.cache.mkdir(parents=True)
    return asked


def test_a_context_has_links_to_wheels_and_base_and_copies_of_the_scripts(
    inputs: BuildInputs, made: list[tuple[Any, ...]]
) -> None:
    said: list[str] = []
    pins = [*inputs.pins().values(), read_pins(inputs.root / "docker/builder.lock")["pip"]]
    with context(inputs, pins, said.append) as folder:
        assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == [
            "Dockerfile", "base.tar", "install.py", "kernels.py", "wheels",
            "wheels/pip-26.0-py3-none-any.whl", "wheels/torch-2.11.0-py3-none-any.whl",
        ]  # fmt: skip
        cached = inputs.cache / "wheels/torch-2.11.0-py3-none-any.whl"
        assert (folder / "wheels" / cached.name).samefile(cached)
        assert folder.parent == inputs.cache and folder.name.startswith("context-")
    assert not folder.exists()
    assert said == [
        "fetching the locked files",
        "fetching Debian's packages",
        "making the base of Debian packages",
    ]
    debs = (Deb("tool", "1", "a" * 64, "t/tool/tool_1_all.deb"),)
    assert made == [
        ("wheels", ["torch", "pip"], inputs.cache / "wheels", images().python),
        ("debs", debs, ("http://mirror",), images().epoch, inputs.cache / "debs"),
        ("base", debs, [Path("a.deb")], images().suite, images().epoch),
    ]


def test_a_base_is_made_once_for_each_lock(inputs: BuildInputs, made: list[tuple[Any, ...]]) -> None:
    def say(_: str) -> None: ...

    first = build_image._base(inputs, say)
    assert build_image._base(inputs, say) == first
    assert [what for what, *_ in made] == ["debs", "base"]
    code = Path(debian_base.__file__).read_bytes()
    of = OTHER_DEBIAN.encode() + code + str(images().epoch).encode()
    assert first == inputs.cache / f"base-{sha256(of)[:16]}.tar"
    (inputs.root / "docker/debian.lock").write_text(OTHER_DEBIAN.replace("tool", "lib"))
    assert build_image._base(inputs, say) != first
    assert [what for what, *_ in made] == ["debs", "base", "debs", "base"]


def test_the_source_is_copied_without_bytecode(inputs: BuildInputs, tmp_path: Path) -> None:
    build_image._copy_source(inputs.root, tmp_path / "source")
    files = sorted(p.relative_to(tmp_path / "source").as_posix() for p in (tmp_path / "source").rglob("*"))
    assert files == ["LICENSE", "README.md", "bench", "bench/__init__.py", "pyproject.toml"]


def test_a_release_whose_package_lies_elsewhere_gives_its_own(
    inputs: BuildInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel carries the other files of an image beside the package."""
    installed = tmp_path / "site/bench"
    shutil.copytree(inputs.root / "bench", installed)
    (installed / "own.py").write_text("")
    monkeypatch.setattr(build_image, "PACKAGE", installed)
    build_image._copy_source(inputs.root, tmp_path / "with")
    assert not (tmp_path / "with/bench/own.py").exists()
    shutil.rmtree(inputs.root / "bench")
    build_image._copy_source(inputs.root, tmp_path / "without")
    assert (tmp_path / "without/bench/own.py").exists()
    (inputs.root / "LICENSE").unlink()
    with pytest.raises(FileNotFoundError):
        build_image._copy_source(inputs.root, tmp_path / "lacking")


# --- buildah -----------------------------------------------------------------------------------------------


def test_buildah_builds_without_a_network_in_a_store_that_is_removed(
    programs: Path, inputs: BuildInputs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs.cache.mkdir(parents=True)
    put(programs, "unshare", 'mkdir -p "${3#--root=}"; echo "unshare $*" >>"$NOTED"; echo out; echo err >&2')
    buildah(tmp_path, inputs, tmp_path / "saved.tar")
    built, pushed, umounted = noted(tmp_path)
    store = built.split()[3].removeprefix("--root=").removesuffix("/root")
    assert Path(store).parent == inputs.cache and Path(store).name.startswith("store-")
    begin = f"unshare --net buildah --root={store}/root --runroot={store}/run"
    options = "--isolation=chroot --identity-label=false --quiet --format=docker --target=image"
    assert built == f"{begin} build {options} --tag=bench {tmp_path}"
    assert pushed == f"{begin} push --quiet bench docker-archive:{tmp_path}/saved.tar"
    assert umounted == f"umount -q {store}/root/overlay"
    assert list(inputs.cache.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_another_stage_has_its_arguments_and_folders_and_need_not_be_saved(
    programs: Path, inputs: BuildInputs, tmp_path: Path
) -> None:
    inputs.cache.mkdir(parents=True)
    more = {"target": "kernels", "arguments": {"A": "1", "B": "2"}, "volumes": ["/a:/b", "/c:/d"]}
    buildah(tmp_path, inputs, None, **more)  # type: ignore[arg-type]
    built, umounted = noted(tmp_path)
    options = "--target=kernels --build-arg=A=1 --build-arg=B=2 --volume=/a:/b --volume=/c:/d"
    assert built.endswith(f"--format=docker {options} --tag=bench {tmp_path}")
    assert umounted.startswith("umount ")


def test_the_last_twelve_lines_tell_why_buildah_failed(
    programs: Path, inputs: BuildInputs, tmp_path: Path
) -> None:
    """A store that cannot be unmounted or is gone already is no further error."""
    inputs.cache.mkdir(parents=True)
    put(programs, "umount", "exit 1")
    put(programs, "unshare", 'rm -r "$(dirname "${3#--root=}")"; seq 1 10; seq 11 20 >&2; exit 1')
    with pytest.raises(EnvironmentCannot) as caught:
        buildah(tmp_path, inputs, None)
    tail = "".join(f"\n  {number}" for number in range(9, 21))
    assert caught.value.message == f"buildah failed:{tail}"


# --- the image ---------------------------------------------------------------------------------------------


SBOM = {
    "components": [
        {"name": "torch", "version": "2.11.0", "purl": "pkg:pypi/torch@2.11.0"},
        {"name": "bench-appliance", "version": __version__, "purl": "pkg:pypi/bench"},
    ]
}


def saved_by_buildah(path: Path, sbom: object = SBOM, stages: Sequence[str] = STAGES, link: str = "") -> None:
    """Write an archive as buildah saves it, with one file in each layer; `link` is a layer that is a link."""
    contents: dict[str, bytes] = {
        f"{name}.tar": layer({f"usr/{name}": name.encode(), "tmp/trace": b"x"}, mtime=5) for name in stages
    }
    if stages:
        last = {"usr/share/bench/sbom.cdx.json": json.dumps(sbom).encode()}
        contents[f"{stages[-1]}.tar"] = layer(last, mtime=5)  # type: ignore[arg-type]
    contents["config.json"] = json.dumps({"config": {"User": "1:1", "Hostname": "builder"}}).encode()
    manifest = [{"Config": "config.json", "Layers": [f"{name}.tar" for name in stages]}]
    contents["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if name == link:
                entry.type, entry.linkname, entry.size = tarfile.DIRTYPE, "", 0
            archive.addfile(entry, io.BytesIO(data))


def finish(inputs: BuildInputs, tmp_path: Path, said: list[str]) -> Any:
    (tmp_path / "layers").mkdir()
    out = tmp_path / "new/folder/image.tar"
    return build_image._finish(
        inputs, tmp_path / "saved.tar", tmp_path / "layers", out, "bench:cpu", said.append
    )


def test_what_buildah_saved_becomes_an_image_without_traces_of_the_builder(
    inputs: BuildInputs, tmp_path: Path
) -> None:
    said: list[str] = []
    saved_by_buildah(tmp_path / "saved.tar")
    facts = finish(inputs, tmp_path, said)
    out = tmp_path / "new/folder/image.tar"
    assert facts == facts_of(out)
    assert said == [f"layer {name}" for name in STAGES]
    assert not (tmp_path / "saved.tar").exists()
    assert facts.tags == ("bench:cpu",) and facts.config.stages == STAGES
    assert not any(one.compressed for one in facts.layers)
    assert kinds_of_layers(out) == ["application/vnd.oci.image.layer.v1.tar"] * 5
    assert facts.labels == labels(inputs)
    document = json.loads(facts.config_bytes)
    assert document["config"]["User"] == "1:1" and "Hostname" not in document["config"]
    assert document["created"] == labels(inputs)["org.opencontainers.image.created"]
    with open_layer(out, facts.layers[0]) as file, tarfile.open(fileobj=file, mode="r|") as archive:
        assert [(member.name, member.mtime) for member in archive] == [("usr/base", images().epoch)]


def test_a_second_image_is_written_into_the_same_folder(inputs: BuildInputs, tmp_path: Path) -> None:
    (tmp_path / "new/folder").mkdir(parents=True)
    saved_by_buildah(tmp_path / "saved.tar")
    assert finish(inputs, tmp_path, []).tags == ("bench:cpu",)


@pytest.mark.parametrize("count", [0, 4])
def test_an_image_of_another_number_of_layers_is_refused(
    inputs: BuildInputs, tmp_path: Path, count: int
) -> None:
    saved_by_buildah(tmp_path / "saved.tar", stages=STAGES[:count])
    with pytest.raises(EnvironmentCannot, match=f"buildah made {count} layers, not 5"):
        finish(inputs, tmp_path, [])


def test_a_layer_that_is_no_file_is_named(inputs: BuildInputs, tmp_path: Path) -> None:
    saved_by_buildah(tmp_path / "saved.tar", link="torch.tar")
    with pytest.raises(EnvironmentCannot, match=r"buildah's archive lacks torch\.tar as a file"):
        finish(inputs, tmp_path, [])


def test_the_space_for_each_kind_of_image() -> None:
    assert build_image.NEEDS_BYTES == {True: 42_949_672_960, False: 6_442_450_944}
    assert build_image.STAGES == STAGES


# --- the whole build ---------------------------------------------------------------------------------------


@pytest.fixture
def builds(
    inputs: BuildInputs, made: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Stand-ins for every program of a build, and what the stand-in of buildah found and shall save."""
    found: dict[str, Any] = {"sbom": SBOM, "checked": 0}

    def stand_in(folder: Path, given: BuildInputs, saved: Path) -> None:
        assert given == inputs
        found["files"] = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        found["saved"] = saved
        saved_by_buildah(saved, found["sbom"])

    def checked(_: BuildInputs) -> None:
        found["checked"] += 1

    monkeypatch.setattr(build_image, "buildah", stand_in)
    monkeypatch.setattr(build_image, "check_prerequisites", checked)
    return found


def test_a_build_gives_buildah_the_locked_files_and_writes_the_image(
    inputs: BuildInputs, builds: dict[str, Any], tmp_path: Path
) -> None:
    said: list[str] = []
    facts = build_image.build(inputs, tmp_path / "image.tar", "bench:cpu", said.append)
    assert facts == facts_of(tmp_path / "image.tar")
    assert json.loads(extract(tmp_path / "image.tar", facts, "usr/share/bench/sbom.cdx.json")) == SBOM
    assert builds["checked"] == 1
    files = builds["files"]
    assert files["pins.txt"] == f"torch==2.11.0 --hash=sha256:{'1' * 64}\n".encode()
    assert files["image.json"] == described(inputs)
    listed = json.loads(files["packages.json"])["files"]
    assert [name for name, _, _ in listed] == ["torch-2.11.0-py3-none-any.whl", "t/tool/tool_1_all.deb"]
    assert "source/bench/__init__.py" in files and "wheels/pip-26.0-py3-none-any.whl" in files
    assert builds["saved"].parent.parent == inputs.cache
    assert builds["saved"].parent.name.startswith("layers-")
    assert sorted(path.name.partition("-")[0] for path in inputs.cache.iterdir()) == ["base", "wheels"]
    assert said[0] == "these files match no commit, so the image will not name one"
    assert said[4] == "building the layers"


def test_files_of_a_commit_are_built_without_a_remark(
    inputs: BuildInputs, builds: dict[str, Any], tmp_path: Path
) -> None:
    (inputs.root / "revision").write_text("c" * 40)
    said: list[str] = []
    build_image.build(inputs, tmp_path / "image.tar", "bench:cpu", said.append)
    assert said[0] == "fetching the locked files"


@pytest.mark.parametrize(
    ("installed", "named"),
    [
        ([("torch", "2.12.0"), ("bench-appliance", __version__)], "torch"),
        ([("bench-appliance", __version__)], "torch"),
        ([("torch", "2.11.0"), ("bench-appliance", "9")], "bench-appliance"),
        ([("torch", "2.11.0")], "bench-appliance"),
        ([(f"p{n}", "1") for n in range(7)], "bench-appliance, p0, p1, p2, p3"),
    ],
)
def test_an_image_with_other_packages_than_the_lock_is_refused(
    inputs: BuildInputs, builds: dict[str, Any], tmp_path: Path, installed: list[tuple[str, str]], named: str
) -> None:
    builds["sbom"] = {
        "components": [{"name": n, "version": v, "purl": f"pkg:pypi/{n}@{v}"} for n, v in installed]
    }
    with pytest.raises(EnvironmentCannot) as caught:
        build_image.build(inputs, tmp_path / "image.tar", "bench:cpu", lambda _: None)
    assert caught.value.message == f"the image and {inputs.variant.lock} disagree about {named}"

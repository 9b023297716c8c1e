"""Lock files: everything is pinned and hashed, and agrees with pyproject.toml and the other locks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import bench
from bench.base.errors import BadInput
from bench.base.names import IMAGE_VARIANTS
from bench.images.debian_packages import read_debs
from bench.images.locked_wheels import check_wheels
from bench.images.locks import BUILDER, DEBIAN, check_all, read_pins
from bench.images.variants import images

ROOT = Path(bench.__file__).parent.parent
HASH = "--hash=sha256:" + "0" * 64


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that `check_all` reads, for tests that break them."""
    (tmp_path / "docker").mkdir()
    for path in (*ROOT.glob("docker/*.lock"), *ROOT.glob("docker/*.in"), ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_locks_agree() -> None:
    assert check_all(ROOT) == []


def test_the_contents_of_every_locked_wheel_are_known(copy: Path) -> None:
    assert [*check_wheels(copy)] == []
    pin = read_pins(copy / "docker/cpu.lock")["tqdm"]
    for sha256 in pin.sha256:
        edit(copy / "docker/cpu.lock", sha256, "0" * 64)
    assert [*check_wheels(copy)] == [f"wheels.json has no wheel of tqdm {pin.version} for Python 3.11"]


def test_packages_for_kernels_are_locked_and_no_kernels() -> None:
    for variant in images().variants:
        assert {*variant.for_kernels} <= read_pins(ROOT / variant.lock).keys() - {*variant.kernels}
        assert bool(variant.for_kernels) == bool(variant.kernels)


def test_the_choices_of_variant_are_the_variants() -> None:
    assert tuple(variant.name for variant in images().variants) == IMAGE_VARIANTS


@pytest.mark.parametrize("path", [*(v.lock for v in images().variants), BUILDER])
def test_every_wheel_is_pinned_by_hash(path: str) -> None:
    pins = read_pins(ROOT / path)
    assert len(pins) > 10
    assert all(pin.sha256 for pin in pins.values())


def test_every_deb_is_pinned_by_hash() -> None:
    names = {deb.name for deb in read_debs(ROOT / DEBIAN)}
    assert {"libc6", "python3.11-minimal", "g++-12", "dpkg", "coreutils"} <= names


def test_a_lock_older_than_pyproject_is_found(copy: Path) -> None:
    edit(copy / "pyproject.toml", '"transformers>=5.17,<5.18"', '"transformers>=6,<7"')
    assert any(
        "requirements.lock has transformers 5.17.0, required is transformers>=6" in f or "transformers<7" in f
        for f in check_all(copy)
    )


def test_a_dependency_missing_from_the_locks_is_found(copy: Path) -> None:
    edit(copy / "pyproject.toml", '"tabulate>=0.9,<1"', '"tabulate>=0.9,<1",\n    "paramiko>=3"')
    assert "requirements.lock lacks paramiko, required as paramiko>=3" in check_all(copy)


def test_a_variant_that_cannot_build_the_wheel_of_bench_is_found(copy: Path) -> None:
    edit(copy / "docker/cuda12.8.in", "setuptools==81.0.0\n", "")
    edit(copy / "docker/cuda12.8.lock", "setuptools==81.0.0 ", "something-else==81.0.0 ")
    assert check_all(copy) == ["docker/cuda12.8.lock lacks setuptools, required as setuptools>=77"]


def test_a_stack_that_differs_from_the_design_is_found(copy: Path) -> None:
    edit(copy / "docker/cuda13.in", "torch==2.11.0", "torch==2.12.0")
    assert check_all(copy) == ["requirements.lock has torch 2.11.0, required is torch==2.12.0"]


def test_a_wheel_compiled_from_another_version_is_found(copy: Path) -> None:
    (copy / "docker/cuda13.built.lock").write_text(f"flash-attn==2.0.0 {HASH}\n")
    assert any(fault.startswith("cuda13.built.lock has flash-attn 2.0.0") for fault in check_all(copy))


@pytest.mark.parametrize(
    "line",
    ["torch>=2", "torch==2.11.0", f"-e . {HASH}", f"torch==2.11.0 {HASH}\ntorch==2.11.0 {HASH}", "./x.whl"],
)
def test_an_unpinned_requirement_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.lock").write_text(line + "\n")
    with pytest.raises(BadInput, match=r"x\.lock"):
        read_pins(tmp_path / "x.lock")


def test_in_an_image_nccl_finds_infiniband() -> None:
    """NCCL loads the library at run time; without it, it silently connects nodes by TCP."""
    names = {deb.name for deb in read_debs(ROOT / DEBIAN)}
    assert {"libibverbs1", "ibverbs-providers"} <= names


def test_a_pin_has_a_normal_name_a_version_and_all_its_digests(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(
        f"# head\n  # torch==9\n\nA_b.C==1.0+cu130 \\\n    {HASH} \\\n    {HASH[:-1]}1\n\nd==1!2 {HASH}\n"
    )
    pins = read_pins(tmp_path / "x.lock")
    assert list(pins) == ["a-b-c", "d"]
    assert (pins["a-b-c"].version, pins["d"].version) == ("1.0+cu130", "1!2")
    assert pins["a-b-c"].sha256 == {"0" * 64, "0" * 63 + "1"}
    assert pins["a-b-c"].line == f"a-b-c==1.0+cu130 {HASH} {HASH[:-1]}1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"torch=={'1' * 90} x", f"is not pinned with its hashes: torch=={'1' * 73}"),
        (f"a_b==1 {HASH}\na.b==2 {HASH}", "pins a-b twice"),
        (f"a==1 {HASH}0", "is not pinned with its hashes: a==1"),
    ],
)
def test_a_line_that_pins_nothing_or_again_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_pins(path)
    assert caught.value.message.startswith(message) and caught.value.where == str(path)


def test_an_image_without_debian_packages_or_with_an_unpinned_builder_is_found(copy: Path) -> None:
    (copy / DEBIAN).write_text("# none\n")
    assert check_all(copy) == [f"{DEBIAN} lists no package"]
    (copy / BUILDER).write_text("wheel\n")
    with pytest.raises(BadInput, match=r"builder\.lock"):
        check_all(copy)


def test_a_requirement_of_the_package_the_build_and_the_extras_of_a_variant_are_checked(copy: Path) -> None:
    edit(copy / "pyproject.toml", 'requires = ["', 'requires = ["of-build>=1", "')
    edit(copy / "pyproject.toml", '"tabulate>=0.9,<1"', '"tabulate>=0.9,<1", "of-bench>=1"')
    (extra, *_) = images().variants[0].extras
    edit(copy / "pyproject.toml", f"\n{extra} = [", f'\n{extra} = ["of-extra>=1",')
    found = "\n".join(check_all(copy))
    for name in ("of-build", "of-bench", "of-extra"):
        assert f"requirements.lock lacks {name}, required as {name}>=1" in found


def test_a_kernel_that_is_compiled_is_in_the_lock_in_the_same_version(copy: Path) -> None:
    variant = next(variant for variant in images().variants if variant.kernels)
    name = variant.kernels[0]
    version = read_pins(copy / variant.lock)[name].version
    (copy / f"docker/{variant.name}.built.lock").write_text(f"{name}=={version} {HASH}\n")
    assert check_all(copy) == []
    edit(copy / variant.lock, f"\n{name}=={version}", f"\nx{name}=={version}")
    assert f"{variant.lock} lacks {name}, which the image compiles" in check_all(copy)


def test_a_release_candidate_satisfies_a_requirement(copy: Path) -> None:
    version = read_pins(copy / "requirements.lock")["tabulate"].version
    edit(copy / "requirements.lock", f"\ntabulate=={version}", "\ntabulate==0.10rc1")
    assert not [text for text in check_all(copy) if text.startswith("requirements.lock has tabulate")]

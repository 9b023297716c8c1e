"""For which GPUs a library has code, read from the library's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.errors import BadInput
from bench.base.kernel_list import CompiledWheel, code_runs_on
from bench.images.gpu_code import gpu_code
from tests.images.stand_in_kernels import compile_library, fat_binary

ALL = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def test_code_is_read_from_all_fat_binaries_of_a_library(tmp_path: Path) -> None:
    fat = fat_binary("12.0f", "9.0a") + bytes(16) + fat_binary("8.0", "ptx 12.0")
    assert gpu_code(compile_library(tmp_path, "kernel", fat)) == ("8.0", "9.0a", "12.0f", "ptx 12.0")


def test_a_library_without_fat_binaries_and_another_file_have_no_code_for_gpus(tmp_path: Path) -> None:
    assert gpu_code(compile_library(tmp_path, "plain", b"")) == ()
    (tmp_path / "text").write_text(
        "\x7fELF, says this text, as long as the header of such a file would be: 64"
    )
    assert gpu_code(tmp_path / "text") == ()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(fat_binary("9.0")[:-60], id="ends inside of an entry"),
        pytest.param(fat_binary("9.0").replace(bytes([90, 0, 0, 0]), bytes(4)), id="capability 0.0"),
        pytest.param(fat_binary("9.0").replace(bytes([64, 0, 0, 0]), bytes(4)), id="head of no bytes"),
        pytest.param(bytes([*fat_binary()[:6], 0, 0, *bytes(8)]), id="fat binary of no bytes"),
    ],
)
def test_damaged_fat_binaries_are_an_error(tmp_path: Path, damage: bytes) -> None:
    library = compile_library(tmp_path, "kernel", damage)
    with pytest.raises(BadInput, match="fat binaries that cannot be read") as caught:
        gpu_code(library)
    assert caught.value.where == library.name


def test_a_truncated_library_is_an_error(tmp_path: Path) -> None:
    library = compile_library(tmp_path, "kernel", fat_binary("9.0"))
    library.write_bytes(library.read_bytes()[:5000])
    with pytest.raises(BadInput, match="cannot be read"):
        gpu_code(library)


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("8.0", ("8.0", "8.6", "8.9")),
        ("8.6", ("8.6", "8.9")),
        ("9.0", ("9.0",)),
        ("9.0a", ("9.0",)),
        ("10.0", ("10.0",)),
        ("12.0f", ("12.0",)),
        ("ptx 9.0", ("9.0", "10.0", "12.0")),
        ("ptx 9.0a", ("9.0",)),
        ("no code", ()),
    ],
)
def test_code_runs_by_the_rules_of_nvidia(code: str, runs: tuple[str, ...]) -> None:
    assert tuple(capability for capability in ALL if code_runs_on(code, capability)) == runs


def test_a_wheel_without_code_for_gpus_runs_everywhere() -> None:
    assert all(CompiledWheel("deepspeed", "1", "f", "0", ()).runs_on(capability) for capability in ALL)
    wheel = CompiledWheel("mamba-ssm", "1", "f", "0", ("8.0", "9.0"))
    assert [wheel.runs_on(capability) for capability in ALL] == [True, True, True, True, False, False]

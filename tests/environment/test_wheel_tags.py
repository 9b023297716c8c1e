"""Wheels fit a Python and its machine, or are refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.tags import cpython_tags
from packaging.utils import parse_wheel_filename

from bench.environment.wheel_tags import WheelName, misfit, rank, read_name
from tests.environment.made_wheels import PYTHON


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ("py3-none-any", None),
        ("py2.py3-none-any", None),
        ("py311-none-any", None),
        ("py38-none-any", None),
        ("py38.py39-none-any", None),
        ("py2.py38-none-any", None),
        ("py3-none-manylinux_2_40_x86_64.manylinux_2_28_x86_64", None),
        ("cp39.cp312-abi3-linux_x86_64", None),
        (
            "cp311-cp311-manylinux_2_40_x86_64.manylinux_2_39_x86_64",
            "it needs glibc 2.39 or newer, the node has 2.36",
        ),
        ("cp311-none-linux_x86_64", None),
        ("macosx_11_0_arm64-none-any", "it is for macosx_11_0_arm64-none, not Python 3.11"),
        ("py3-cp311-any", "it is for py3-cp311, not Python 3.11"),
        ("py3x-none-any", "it is for py3x-none, not Python 3.11"),
        ("cp311-cp311-manylinux_2_28_x86_64", None),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", None),
        ("cp37-abi3-manylinux_2_34_x86_64", None),
        ("cp311-abi3-manylinux2014_x86_64", None),
        ("py3-none-manylinux1_x86_64", None),
        ("cp311-cp311-linux_x86_64", None),
        ("cp312-cp312-manylinux_2_28_x86_64", "it is for cp312-cp312, not Python 3.11"),
        ("cp310-cp310-manylinux_2_28_x86_64", "it is for cp310-cp310, not Python 3.11"),
        ("cp312-abi3-manylinux_2_28_x86_64", "it is for cp312-abi3, not Python 3.11"),
        ("cp313-cp313t-manylinux_2_28_x86_64", "it is for cp313-cp313t, not Python 3.11"),
        ("py312-none-any", "it is for py312-none, not Python 3.11"),
        ("py2-none-any", "it is for py2-none, not Python 3.11"),
        ("cp311-cp311-macosx_11_0_arm64", "it is for macosx_11_0_arm64, not Linux on x86_64"),
        ("cp311-cp311-manylinux_2_28_aarch64", "it is for manylinux_2_28_aarch64, not Linux on x86_64"),
        ("cp311-cp311-musllinux_1_2_x86_64", "it is for musllinux_1_2_x86_64, not Linux on x86_64"),
        ("cp311-cp311-manylinux_2_39_x86_64", "it needs glibc 2.39 or newer, the node has 2.36"),
    ],
)
def test_a_wheel_fits_or_says_why_not(tags: str, reason: str | None) -> None:
    assert misfit(f"torch-2.13.0+cpu-{tags}.whl", PYTHON) == reason


def test_the_decision_is_that_of_packaging() -> None:
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    accepted = {*cpython_tags((3, 11), ["cp311"], platforms)}
    for python in ("cp311", "cp312", "cp38", "cp310"):
        for abi in ("cp311", "abi3", "none", "cp310"):
            for platform in ("manylinux_2_28_x86_64", "manylinux_2_38_x86_64", "manylinux2014_x86_64"):
                name = f"a-1-{python}-{abi}-{platform}.whl"
                theirs = bool(parse_wheel_filename(name)[3] & accepted)
                if python in ("cp38", "cp310", "cp312") and abi == "none":
                    continue  # no wheel has these tags; packaging accepts them for older Pythons alone
                assert (misfit(name, PYTHON) is None) == theirs, name


def test_a_source_archive_and_a_torn_name_are_no_wheels() -> None:
    assert misfit("flash_attn-2.8.3.tar.gz", PYTHON) == "it is not a wheel"
    assert misfit("a.whl", PYTHON) == "it is not a wheel"


def test_an_older_node_is_told_its_glibc() -> None:
    bullseye = replace(PYTHON, glibc=(2, 31))
    told = misfit("cryptography-50.0.2-cp311-abi3-manylinux_2_34_x86_64.whl", bullseye)
    assert told == "it needs glibc 2.34 or newer, the node has 2.31"


def test_of_several_that_fit_the_one_for_this_python_and_the_newest_glibc_comes_first() -> None:
    names = [
        "a-1-py3-none-any.whl",
        "a-1-cp39-abi3-manylinux_2_28_x86_64.whl",
        "a-1-cp311-cp311-manylinux2014_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    ]
    assert sorted(names, key=lambda name: rank(name, PYTHON)) == [names[3], names[2], names[1], names[0]]


def test_of_two_wheels_for_any_glibc_the_one_for_this_machine_comes_first() -> None:
    names = ["a-1-py3-none-any.whl", "a-1-py3-none-linux_x86_64.whl"]
    assert min(names, key=lambda name: rank(name, PYTHON)) == names[1]


def test_a_wheel_for_several_machines_ranks_by_this_one() -> None:
    name = "a-1-cp311-cp311-macosx_11_0_arm64.manylinux_2_17_x86_64.manylinux_2_28_aarch64.whl"
    assert rank(name, PYTHON) == (0, False, -2, -17)
    assert rank("a-1-cp39-abi3-macosx_11_0_arm64.linux_x86_64.whl", PYTHON) == (1, False, 0, 0)


def test_the_name_of_a_wheel_in_its_parts() -> None:
    assert read_name("Flash_Attn-2.8.3_1-1-cp311.cp312-abi3-linux_x86_64.manylinux1_x86_64.whl") == WheelName(
        "flash-attn", "2.8.3-1", ("cp311", "cp312"), ("abi3",), ("linux_x86_64", "manylinux1_x86_64")
    )


@pytest.mark.parametrize(
    ("old", "glibc"), [("manylinux1", "2.5"), ("manylinux2010", "2.12"), ("manylinux2014", "2.17")]
)
def test_an_old_name_of_a_platform_stands_for_a_glibc(old: str, glibc: str) -> None:
    node = replace(PYTHON, glibc=(2, 4))
    name = f"a-1-py3-none-{old}_x86_64.whl"
    assert misfit(name, node) == f"it needs glibc {glibc} or newer, the node has 2.4"
    assert misfit(name, replace(PYTHON, glibc=(2, int(glibc[2:])))) is None
    assert misfit(f"a-1-py3-none-{old}_i686.whl", PYTHON) == f"it is for {old}_i686, not Linux on x86_64"

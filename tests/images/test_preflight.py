"""Checks before a container starts: what they refuse, and with which messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Identity
from bench.images.engines import EngineFacts
from bench.images.engines.preflight import (
    HostFacts,
    check_driver,
    check_gpus,
    check_identity,
    check_job,
    check_machine,
    check_room,
    read_host,
    visible_gpus,
)
from bench.images.variants import find_variant, variant_for

CUDA13, CUDA128 = find_variant("cuda13"), find_variant("cuda12.8")
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@x)\nGCC"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:"
)


def shell_of(answers: dict[str, tuple[int, str]]) -> object:
    def shell(command: Sequence[str]) -> tuple[int, str] | None:
        return answers.get(command[0])

    return shell


@pytest.mark.parametrize(
    ("text", "driver"), [(OPEN, "580.159.04"), (CLOSED, "535.104.05"), ("nonsense", None)]
)
def test_the_driver_is_read_from_the_kernel(text: str, driver: str | None) -> None:
    toolkit = (0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80\n")
    host = read_host(shell_of({"cat": (0, text), "nvidia-ctk": toolkit}))  # type: ignore[arg-type]
    assert host == HostFacts(driver, "1.17.8")


def test_an_arm_host_is_refused_because_images_are_for_x86() -> None:
    grace = read_host(shell_of({"cat": (0, OPEN), "uname": (0, "aarch64\n")}))  # type: ignore[arg-type]
    with pytest.raises(EnvironmentCannot, match="is aarch64, the images are for x86_64") as raised:
        check_machine(grace)
    assert "--engine none" in str(raised.value.advice)
    check_machine(read_host(shell_of({"uname": (0, "x86_64\n")})))  # type: ignore[arg-type]
    check_machine(HostFacts("580.65.06", None))


def test_a_machine_without_gpus_has_neither_driver_nor_toolkit() -> None:
    assert read_host(shell_of({"cat": (1, "cat: no such file")})) == HostFacts(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("driver", "variant"),
    [("580.65.06", "cuda13"), ("590.1", "cuda13"), ("580.65.05", "cuda12.8"), ("570.26", "cuda12.8"),
     ("570.25", None), ("535.104.05", None), (None, "cpu")],
)  # fmt: skip
def test_the_variant_that_fits_a_driver(driver: str | None, variant: str | None) -> None:
    fitting = variant_for(driver)
    assert (fitting.name if fitting else None) == variant


def test_a_driver_too_old_is_told_the_minimum_and_the_variant_that_fits() -> None:
    with pytest.raises(
        EnvironmentCannot, match=r"570\.124 is too old for the image cuda13.*580\.65\.06"
    ) as caught:
        check_driver(HostFacts("570.124", None), CUDA13)
    assert caught.value.advice == "use the image cuda12.8"
    assert caught.value.exit_code == 3


def test_a_driver_too_old_for_all_is_told_what_to_do() -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        check_driver(HostFacts("535.104.05", None), CUDA128)
    assert "update it (cuda12.8 needs 570.26)" in str(caught.value)
    assert "--engine none" in str(caught.value)


def test_without_a_driver_the_machine_is_refused() -> None:
    with pytest.raises(EnvironmentCannot, match="there is no NVIDIA driver"):
        check_driver(HostFacts(None, None), CUDA13)
    check_driver(HostFacts(None, None), find_variant("cpu"))


def test_an_engine_without_gpus_is_refused_only_on_a_machine_with_gpus() -> None:
    engine = EngineFacts("docker", "20.10.24", None, None)
    with pytest.raises(EnvironmentCannot, match=r"docker 20\.10\.24 cannot pass GPUs to containers"):
        check_gpus(HostFacts("580.65.06", None), engine)
    check_gpus(HostFacts(None, None), engine)


@pytest.mark.parametrize(
    ("toolkit", "refused"), [("1.16.2", True), ("1.17.7", True), ("1.17.8", False), ("1.18.0", False)]
)
def test_a_vulnerable_toolkit_is_refused(toolkit: str, refused: bool) -> None:
    host, engine = HostFacts("580.65.06", toolkit), EngineFacts("docker", "28.2", "cdi", None)
    if not refused:
        check_gpus(host, engine)
        return
    with pytest.raises(EnvironmentCannot, match=f"toolkit {toolkit} .*CVE-2025-23266") as caught:
        check_gpus(host, engine)
    assert caught.value.advice == "update it to 1.17.8 or newer"


def test_too_little_disk_is_named_with_what_is_needed(tmp_path: Path) -> None:
    check_room(tmp_path, 1, "nothing")
    with pytest.raises(EnvironmentCannot, match=r"GiB are free, the image x needs 1,048,576\.0 GiB"):
        check_room(tmp_path, 2**50, "the image x")


def test_another_image_than_the_manifest_s_is_refused() -> None:
    mine, other = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    check_identity(Identity(mine, ()), mine, "bench:cpu")
    check_identity(None, None, "bench:cpu")
    with pytest.raises(EnvironmentCannot, match=f"bench:cpu is {other}, the manifest asks for {mine}"):
        check_identity(Identity(other, ()), mine, "bench:cpu")
    with pytest.raises(EnvironmentCannot, match="--engine none uses no image"):
        check_identity(None, mine, "bench:cpu")


def test_a_variant_that_does_not_exist() -> None:
    with pytest.raises(BadInput, match="nearest"):
        find_variant("cuda12")


def test_gpus_allocated_to_a_job_are_counted() -> None:
    two = (
        "GPU 0: NVIDIA H200 (UUID: GPU-1f)\n"
        "  MIG 1g.18gb Device 0: (UUID: MIG-2)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-2f)\n"
    )
    assert visible_gpus(shell_of({"nvidia-smi": (0, two)})) == 2  # type: ignore[arg-type]
    assert visible_gpus(shell_of({"nvidia-smi": (9, "no driver")})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "environment", "parts", "refused"),
    [
        ("docker", {"SLURM_JOB_ID": "7"}, ["8 of 64 cores", "2 of 8 GPUs"], True),
        ("docker", {"SLURM_JOB_ID": "7"}, [], False),  # the whole node
        ("docker", {}, ["8 of 64 cores"], False),  # no scheduler shares this machine
        ("podman", {"SLURM_JOB_ID": "7"}, ["8 of 64 cores"], False),  # stays within the job
    ],
)
def test_docker_is_refused_in_a_job_that_has_a_part_of_its_node(
    engine: str, environment: dict[str, str], parts: list[str], refused: bool
) -> None:
    facts = EngineFacts(engine, "28.2", "cdi", None)
    if not refused:
        return check_job(facts, environment, lambda: parts)
    with pytest.raises(EnvironmentCannot, match=r"Slurm job has 8 of 64 cores, 2 of 8 GPUs.*\n.*podman"):
        check_job(facts, environment, lambda: parts)
    return None

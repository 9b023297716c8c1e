"""What would go wrong on a machine, found before anything starts: facts first, then judged, purely."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.images.container import GIB
from bench.images.engines import EngineFacts, Shell
from bench.images.variants import Variant, images, variant_for, version_numbers

# CVE-2025-23266: a container's own library ran as root on the host. Earlier ones (CVE-2024-0132) end before.
OLDEST_TOOLKIT = "1.17.8"
_DRIVER = re.compile(r"Kernel Module\S*(?:\s+for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_TOOLKIT = re.compile(r"version:?\s+v?(\d+\.\d+\.\d+)")
_GPU = re.compile(r"^GPU \d+:", re.MULTILINE)
_MACHINE = re.compile(r"(\S+)")
SCHEDULERS = {"SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF"}  # by what they set in a job
OUT_BYTES = GIB  # journal, logs and bundle of a long run, with room


@dataclass(frozen=True, slots=True)
class HostFacts:
    driver: str | None  # of the GPUs; None: there are none
    toolkit: str | None  # NVIDIA's, which hands GPUs to containers
    machine: str | None = None  # as uname names its processor


def read_host(shell: Shell) -> HostFacts:
    """By commands that any node answers, here or over SSH."""
    return HostFacts(
        _found(shell, ("cat", "/proc/driver/nvidia/version"), _DRIVER),
        _found(shell, ("nvidia-ctk", "--version"), _TOOLKIT),
        _found(shell, ("uname", "-m"), _MACHINE),
    )


def visible_gpus(shell: Shell) -> int | None:
    """To whoever asks here; None where nothing tells."""
    answer = shell(("nvidia-smi", "-L"))
    return len(_GPU.findall(answer[1])) if answer and answer[0] == 0 else None


def _found(shell: Shell, command: tuple[str, ...], pattern: re.Pattern[str]) -> str | None:
    answer = shell(command)
    match = pattern.search(answer[1]) if answer and answer[0] == 0 else None
    return match[1] if match else None


def check_machine(host: HostFacts) -> None:
    if host.machine not in (None, "x86_64"):
        raise EnvironmentCannot(
            f"this machine is {host.machine}, the images are for x86_64",
            advice="pip install 'bench[run]' there, and run on the bare host with --engine none",
        )


def check_driver(host: HostFacts, variant: Variant) -> None:
    if variant.driver is None:
        return
    if host.driver is None:
        raise EnvironmentCannot(
            f"there is no NVIDIA driver here; the image {variant.name} needs {variant.driver} or newer",
            advice="install it, or measure the CPU with the image cpu",
        )
    if version_numbers(host.driver) >= version_numbers(variant.driver):
        return
    fitting = variant_for(host.driver)
    oldest = [v for v in images().variants if v.driver][-1]
    raise EnvironmentCannot(
        f"driver {host.driver} is too old for the image {variant.name}, CUDA {variant.cuda}: "
        f"it needs {variant.driver} or newer",
        advice=f"take the image {fitting.name}"
        if fitting
        else f"update it ({oldest.name} needs {oldest.driver}), or run on the bare host with --engine none",
    )


def check_gpus(host: HostFacts, engine: EngineFacts) -> None:
    """Can this engine hand out the GPUs that are here, and may it?"""
    if host.driver is None or engine.name == "none":
        return
    if engine.gpus is None:
        raise EnvironmentCannot(
            f"{engine.name} {engine.version} hands no GPUs to containers",
            advice="with NVIDIA's container toolkit: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    # Apptainer's --nv is its own; it does not use the toolkit.
    if engine.name == "apptainer" or host.toolkit is None:
        return
    if version_numbers(host.toolkit) < version_numbers(OLDEST_TOOLKIT):
        raise EnvironmentCannot(
            f"NVIDIA's container toolkit {host.toolkit} lets a container take over the host (CVE-2025-23266)",
            advice=f"update it to {OLDEST_TOOLKIT} or newer",
        )


def check_job(
    engine: EngineFacts, environment: Mapping[str, str], parts: Callable[[], Sequence[str]]
) -> None:
    """Docker starts containers outside of a scheduler's job: they would have what others were given.

    `parts`: what the job has, where that is not all; looked for in a job alone.
    """
    scheduler = next((name for variable, name in SCHEDULERS.items() if variable in environment), None)
    if engine.name != "docker" or scheduler is None or not (has := parts()):
        return
    raise EnvironmentCannot(
        f"this {scheduler} job has {', '.join(has)}; Docker would run outside of it, on the whole machine",
        advice="--engine podman or apptainer, which stay within the job, or a job that has the whole node",
    )


def check_room(place: Path, needed: int, what: str) -> None:
    check_free(shutil.disk_usage(place).free, needed, what, str(place))


def check_free(free: int, needed: int, what: str, where: str) -> None:
    if free < needed:
        raise EnvironmentCannot(
            f"{free / GIB:.1f} GiB are free, {what} needs {needed / GIB:.1f}",
            where=where,
            advice="make room there",
        )


def check_identity(found: Identity | None, wanted: str | None, image: str) -> None:
    """An image that is not the manifest's is no reproduction of it."""
    if wanted is None:
        return
    if found is None:
        raise EnvironmentCannot(
            f"the manifest asks for the image {wanted}; --engine none runs none",
            advice="--engine docker or podman",
        )
    if found.config != wanted:
        raise EnvironmentCannot(
            f"{image} is {found.config}, the manifest asks for {wanted}",
            advice="load that image (bench image id FILE tells one), or take `image` out of the manifest",
        )

"""Checks of a machine before a container starts on it.

`read_host` collects facts through a `Shell`, on this machine or a node; the check_* functions raise
EnvironmentCannot with advice. All are pure, except `check_room`, which reads the free space of a disk.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.base.distribution import pip_install
from bench.base.errors import EnvironmentCannot
from bench.base.names import GIB
from bench.base.sizes import bytes_text
from bench.images.archive import Identity
from bench.images.engines import EngineFacts, Shell
from bench.images.variants import Variant, images, variant_for, version_numbers

# First version without CVE-2025-23266, which let a library in a container run as root on the host; earlier
# vulnerabilities, such as CVE-2024-0132, were fixed before.
OLDEST_TOOLKIT = "1.17.8"
_DRIVER = re.compile(r"Kernel Module\S*(?:\s+for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_TOOLKIT = re.compile(r"version:?\s+v?(\d+\.\d+\.\d+)")
_GPU = re.compile(r"^GPU \d+:", re.MULTILINE)
_MACHINE = re.compile(r"(\S+)")
SCHEDULERS = {"SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF"}  # by a variable of their jobs
OUT_BYTES = GIB  # disk space for journal, logs and bundle of a long run


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Versions on a machine that decide which image it can run."""

    driver: str | None  # NVIDIA's kernel driver; None: no GPUs
    toolkit: str | None  # NVIDIA's container toolkit, which passes GPUs to containers
    machine: str | None = None  # processor architecture, from uname -m


def read_host(shell: Shell) -> HostFacts:
    """Read the versions on a machine; those of missing drivers and programs are None."""
    return HostFacts(
        driver=_match(shell, ("cat", "/proc/driver/nvidia/version"), _DRIVER),
        toolkit=_match(shell, ("nvidia-ctk", "--version"), _TOOLKIT),
        machine=_match(shell, ("uname", "-m"), _MACHINE),
    )


def visible_gpus(shell: Shell) -> int | None:
    """Return the number of GPUs that nvidia-smi lists; None if it fails or is missing."""
    answer = shell(("nvidia-smi", "-L"))
    return len(_GPU.findall(answer[1])) if answer and answer[0] == 0 else None


def _match(shell: Shell, command: tuple[str, ...], pattern: re.Pattern[str]) -> str | None:
    answer = shell(command)
    match = pattern.search(answer[1]) if answer and answer[0] == 0 else None
    return match[1] if match else None


def check_machine(host: HostFacts) -> None:
    """Refuse a machine whose processor architecture the images do not support."""
    if host.machine not in (None, "x86_64"):
        advice = f"{pip_install('run')}, and run without a container: --engine none"
        raise EnvironmentCannot(f"this machine is {host.machine}, the images are for x86_64", advice=advice)


def check_driver(host: HostFacts, variant: Variant) -> None:
    """Refuse a driver that is missing or too old for the image variant."""
    if variant.driver is None:
        return
    if host.driver is None:
        message = f"there is no NVIDIA driver; the image {variant.name} needs {variant.driver} or newer"
        advice = "install the driver, or measure the CPU with the image cpu"
        raise EnvironmentCannot(message, advice=advice)
    if version_numbers(host.driver) >= version_numbers(variant.driver):
        return
    fitting = variant_for(host.driver)
    oldest = images().oldest_cuda
    advice = f"update it ({oldest.name} needs {oldest.driver}), or run without a container: --engine none"
    raise EnvironmentCannot(
        f"driver {host.driver} is too old for the image {variant.name}, CUDA {variant.cuda}: "
        f"it needs {variant.driver} or newer",
        advice=f"use the image {fitting.name}" if fitting else advice,
    )


def check_gpus(host: HostFacts, engine: EngineFacts) -> None:
    """Refuse an engine that cannot pass GPUs to containers, or passes them with a vulnerable toolkit."""
    if host.driver is None or engine.name == "none":
        return
    if engine.gpus is None:
        message = f"{engine.name} {engine.version} cannot pass GPUs to containers"
        advice = "set up NVIDIA's container toolkit: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        raise EnvironmentCannot(message, advice=advice)
    # Apptainer's --nv does not use NVIDIA's container toolkit.
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
    """Refuse Docker inside a scheduler's job that has only part of the machine.

    Docker's daemon starts containers outside of the job, where they would use the resources of other jobs.
    `parts` returns the job's limits, an empty sequence if the job has the whole machine; it is called only
    inside a job.
    """
    scheduler = next((name for variable, name in SCHEDULERS.items() if variable in environment), None)
    if engine.name != "docker" or scheduler is None:
        return
    if limits := parts():
        message = f"this {scheduler} job has {', '.join(limits)}; Docker would use the whole machine"
        advice = "--engine podman or apptainer, which stay within the job, or a job with the whole node"
        raise EnvironmentCannot(message, advice=advice)


def check_room(place: Path, needed: int, what: str) -> None:
    """Refuse a folder whose disk has less than `needed` bytes free; `what` names the purpose."""
    check_free(shutil.disk_usage(place).free, needed, what, str(place))


def check_free(free: int, needed: int, what: str, where: str) -> None:
    """Refuse a disk with less than `needed` bytes free; `what` names the purpose, `where` the folder."""
    if free < needed:
        message = f"{bytes_text(free)} are free, {what} needs {bytes_text(needed)}"
        advice = "free some space on this disk"
        raise EnvironmentCannot(message, where=where, advice=advice)


def check_identity(identity: Identity | None, required: str | None, image: str, engine: str = "none") -> None:
    """Refuse an image without the identity that the manifest requires; `image` is its name for messages."""
    if required is None:
        return
    if identity is None:
        message = f"the manifest asks for the image {required}; --engine {engine} uses no image"
        advice = "--engine docker or podman"
        raise EnvironmentCannot(message, advice=advice)
    if identity.config != required:
        message = f"{image} is {identity.config}, the manifest asks for {required}"
        advice = "load that image (see bench image id FILE), or remove `image` from the manifest"
        raise EnvironmentCannot(message, advice=advice)

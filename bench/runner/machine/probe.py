"""Describe this machine from /proc, NVML, the installed packages and the environment.

Uses no GPU and imports no torch.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from email.parser import HeaderParser
from functools import cache
from importlib import metadata
from pathlib import Path

from bench.base import machine_share
from bench.base.distribution import pip_install
from bench.base.errors import EnvironmentCannot
from bench.records import switches
from bench.records.trial import NodeFacts
from bench.runner.machine.gpus import gpus_here
from bench.runner.machine.kernel_gpus import kernel_gpus
from bench.runner.machine.own_environment import environment_here
from bench.runner.machine.own_image import running_in

# Packages that can change a result. Other packages are listed in env.json, but do not distinguish machines.
STACK = (
    *("torch", "transformers", "triton", "numpy", "accelerate", "deepspeed", "timm", "peft"),
    *("flash-attn", "mamba-ssm", "causal-conv1d"),
    *("nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cublas"),
)


def probe(*, gpus_too: bool = True) -> NodeFacts:
    """Return the facts of this machine; without `gpus_too`, as if it had no GPU."""
    memory_bytes = machine_share.memory_bytes()
    gpus, driver = gpus_here(memory_bytes) if gpus_too else ((), None)
    return NodeFacts(
        cpu=_cpu_name(),
        cpu_cores=machine_share.cores(),
        memory_bytes=memory_bytes,
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        gpus=gpus,
        driver=driver,
        packages=packages(STACK),
        image=running_in(),
        switches=switches.kept(os.environ),
        kernel_gpus=kernel_gpus() if gpus else None,
        environment=environment_here(os.environ),
    )


def packages(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed, by name."""
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def all_packages() -> dict[str, str]:
    """Return the versions of all installed packages, by name."""
    return dict(_packages_in(tuple((folder, _changed_at(folder)) for folder in sys.path)))


@cache
def _packages_in(folders: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    """Read the packages in folders. The times of their last change make the cache notice installations."""
    found = metadata.distributions(path=[folder for folder, _ in folders])
    return tuple(sorted(map(_name_and_version, found)))


def _changed_at(folder: str) -> int:
    try:
        return Path(folder or ".").stat().st_mtime_ns
    except OSError:  # a folder that does not exist has no packages
        return 0


def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Parse the head of a package's metadata only: the rest holds the README and is slow to parse."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    head = HeaderParser().parsestr(text.partition("\n\n")[0], headersonly=True)
    return head["Name"], head["Version"]


def require_stack() -> None:
    """Raise EnvironmentCannot unless torch, transformers and numpy are installed."""
    missing = sorted({"torch", "transformers", "numpy"} - packages(STACK).keys())
    if missing:
        raise EnvironmentCannot(
            f"{', '.join(missing)} not installed here", advice=f"{pip_install('run')}, or run in the image"
        )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()

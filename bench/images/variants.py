"""The variants of the image, read from the shipped images.json: lock, CUDA version, oldest driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bench.base.errors import BadInput, nearest
from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json


@dataclass(frozen=True, slots=True)
class Variant:
    """An image that `bench image build` can make."""

    name: str
    lock: str  # lock file of the image's wheels, relative to the repository
    extras: tuple[str, ...]  # extras of bench that the image contains
    cuda: str | None  # CUDA version; None: the image is for machines without a GPU
    driver: str | None  # oldest NVIDIA driver that runs this CUDA version
    pythons: tuple[str, ...]  # versions that the lock has wheels for, kernels aside; the image's comes first
    wheel_bytes: int  # of the lock's wheels for the image's Python, kernels aside, when the lock was made
    glibc: str  # oldest version that all of these wheels run with
    kernels: tuple[str, ...]  # wheels that no index has: `bench image kernels` compiles and locks them
    for_kernels: tuple[str, ...]  # other packages of the lock, which nothing but kernels needs
    source: str  # source of the driver's number

    @property
    def built_lock(self) -> str:
        """The lock of the wheels that `bench image kernels` compiled, relative to the repository."""
        return f"docker/{self.name}.built.lock"


@dataclass(frozen=True, slots=True)
class Images:
    """The contents of images.json: the variants, newest CUDA first, and the facts that they share."""

    suite: str  # Debian release
    python: str
    epoch: int  # modification time of every file in an image; `make lock` updates this time
    variants: tuple[Variant, ...]
    schema: Literal["bench/images/v1"]

    @property
    def by_name(self) -> Mapping[str, Variant]:
        """The variants by the names that `bench image build` takes."""
        return {variant.name: variant for variant in self.variants}

    @property
    def oldest_cuda(self) -> Variant:
        """The variant for the oldest drivers: older ones can run no image with CUDA."""
        return [variant for variant in self.variants if variant.driver][-1]


@cache
def images() -> Images:
    """Return the shipped images.json."""
    return from_json(Images, read_data("images.json"))


def find_variant(name: str) -> Variant:
    """Return the variant called `name`; BadInput, which advises the nearest name, if it does not exist."""
    variants = images().by_name
    if name not in variants:
        raise BadInput(f'there is no image variant "{name}"', advice=nearest(name, variants))
    return variants[name]


def version_numbers(text: str) -> tuple[int, ...]:
    """Split a version such as 580.65.06 into comparable numbers, ignoring a suffix after `-`, `+` or `~`."""
    head = text.split("+")[0].split("-")[0].split("~")[0]
    return tuple(int(part) for part in head.split(".") if part.isdigit())


def variant_for(driver: str | None) -> Variant | None:
    """Return the newest variant that a driver can run, or None; without a driver, the CPU variant."""
    for variant in images().variants:
        if variant.driver is None:
            if driver is None:
                return variant
        elif driver is not None and version_numbers(driver) >= version_numbers(variant.driver):
            return variant
    return None

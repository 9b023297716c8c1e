"""The variants of the image, as data: which lock, which CUDA, which driver at least."""

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
    name: str
    lock: str  # of its wheels, in the repository
    extras: tuple[str, ...]  # of ours that it installs
    cuda: str | None  # None: for machines without a GPU
    driver: str | None  # the oldest that runs this CUDA
    kernels: tuple[str, ...]  # wheels that we compile: compiled ahead: docker/NAME.built.lock
    source: str  # of the driver's number


@dataclass(frozen=True, slots=True)
class Images:
    """What all variants share, and the variants, newest CUDA first."""

    suite: str  # of Debian
    python: str
    epoch: int  # the time of every file in an image; moved by `make lock`
    variants: tuple[Variant, ...]
    schema: Literal["bench/images/v1"]

    @property
    def by_name(self) -> Mapping[str, Variant]:
        return {variant.name: variant for variant in self.variants}


@cache
def images() -> Images:
    return from_json(Images, read_data("images.json"))


def find_variant(name: str) -> Variant:
    known = images().by_name
    if name not in known:
        raise BadInput(f'"{name}" is no variant of the image', advice=nearest(name, known))
    return known[name]


def version_numbers(text: str) -> tuple[int, ...]:
    """580.65.06 as numbers, to be compared; what follows a dash or plus does not count."""
    head = text.split("+")[0].split("-")[0].split("~")[0]
    return tuple(int(part) for part in head.split(".") if part.isdigit())


def variant_for(driver: str | None) -> Variant | None:
    """The newest variant that this driver runs; None if it is too old for all of them."""
    for variant in images().variants:
        if variant.driver is None:
            if driver is None:
                return variant
        elif driver is not None and version_numbers(driver) >= version_numbers(variant.driver):
            return variant
    return None

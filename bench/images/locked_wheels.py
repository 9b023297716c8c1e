"""Contents of the wheels of the locks, read from the shipped wheels.json, which `make lock` writes.

Each of these wheels was downloaded whole and checked by the lock's digest. A wheel is known by its sha256,
and its contents by a digest that the files also have where another installer put them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.environment.interpreter import Interpreter
from bench.environment.wheel_tags import misfit
from bench.images.locks import Pin, read_pins
from bench.images.variants import images

DATA = "wheels.json"
ANY_GLIBC = (2, 99)


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """A wheel that a lock accepts."""

    file: str  # its name
    bytes: int
    contents: str  # tree digest of the files that an environment has of it


@dataclass(frozen=True, slots=True)
class LockedWheels:
    """The contents of wheels.json."""

    source: str
    dated: str
    wheels: Mapping[str, LockedWheel]  # by sha256
    schema: Literal["bench/wheels/v1"]


@cache
def locked_wheels() -> Mapping[str, LockedWheel]:
    return from_json(LockedWheels, read_data(DATA)).wheels


def wheels_of(pin: Pin) -> tuple[LockedWheel, ...]:
    """Return the wheels of a pin that are known."""
    known = locked_wheels()
    return tuple(known[sha256] for sha256 in sorted(pin.sha256) if sha256 in known)


def interpreter_for(python: str) -> Interpreter:
    """Return a Python, as major.minor, by which wheels are chosen for any glibc."""
    major, minor = (int(part) for part in python.split("."))
    return Interpreter(Path(), (major, minor), "", "", ANY_GLIBC)


def check_wheels(root: Path) -> Iterator[str]:
    """Yield a sentence for each package of the locks whose wheel is not known, and for wheels of no lock."""
    unused = {*locked_wheels()}
    for variant in images().variants:
        for pin in read_pins(root / variant.lock).values():
            unused -= pin.sha256
            for python in variant.pythons if pin.name not in variant.kernels else ():
                if all(misfit(wheel.file, interpreter_for(python)) for wheel in wheels_of(pin)):
                    yield f"{DATA} has no wheel of {pin.name} {pin.version} for Python {python}"
    for sha256 in sorted(unused):
        yield f"{DATA} has {locked_wheels()[sha256].file}, which no lock accepts"

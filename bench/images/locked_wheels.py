"""Look up the contents of locked wheels in the shipped wheels.json, which `make lock` writes.

`make lock` downloaded each of these wheels and checked the lock's digest. A wheel's key is its sha256; the
digest of its contents is the same wherever an installer put the files.
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
    """Return all wheels of wheels.json, by sha256."""
    return from_json(LockedWheels, read_data(DATA)).wheels


def wheels_of(pin: Pin) -> tuple[LockedWheel, ...]:
    """Return those wheels of a pin that wheels.json lists."""
    known = locked_wheels()
    return tuple(known[sha256] for sha256 in sorted(pin.sha256) if sha256 in known)


def interpreter_for(python: str) -> Interpreter:
    """Return an interpreter of a version, as major.minor, for which wheels of any glibc fit."""
    major, minor = (int(part) for part in python.split("."))
    return Interpreter(Path(), (major, minor), "", "", ANY_GLIBC)


def check_wheels(root: Path) -> Iterator[str]:
    """Yield a sentence for each locked package that has no wheel in wheels.json, and each unlocked wheel."""
    unused = {*locked_wheels()}
    for variant in images().variants:
        for pin in read_pins(root / variant.lock).values():
            unused -= pin.sha256
            for python in variant.pythons if pin.name not in variant.kernels else ():
                if all(misfit(wheel.file, interpreter_for(python)) for wheel in wheels_of(pin)):
                    yield f"{DATA} has no wheel of {pin.name} {pin.version} for Python {python}"
    for sha256 in sorted(unused):
        yield f"{DATA} has {locked_wheels()[sha256].file}, which no lock accepts"

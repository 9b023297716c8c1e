"""Decide from a wheel's name whether it fits an interpreter, and say why it does not. Pure.

A wheel's name ends with three tags: Python, ABI and platform (PEP 425, 600). pip decides in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.environment.interpreter import Interpreter
from bench.packages.package_index import normal

_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_CPYTHON = re.compile(r"cp3(\d+)")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_OLD_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True)
class WheelName:
    """The parts of a wheel's file name."""

    project: str  # normalised (PEP 503)
    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]


def read_name(file_name: str) -> WheelName | None:
    """Split the name of a wheel; None for another file."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    tags = (tuple(match[part].split(".")) for part in ("python", "abi", "platform"))
    return WheelName(normal(match["name"]), match["version"].replace("_", "-"), *tags)


def misfit(file_name: str, python: Interpreter) -> str | None:
    """Return the reason why a wheel does not fit an interpreter and its machine; None if it does."""
    name = read_name(file_name)
    if name is None:
        return "it is not a wheel"
    if not _fits_python(name, python.version[1]):
        return f"it is for {'.'.join(name.pythons)}-{'.'.join(name.abis)}, not Python {python.text}"
    needed = [glibc for platform in name.platforms if (glibc := _glibc_of(platform, python.machine))]
    if not needed:
        return f"it is for {'.'.join(name.platforms)}, not Linux on {python.machine}"
    if min(needed) > python.glibc:
        return "it needs glibc {}.{} or newer, the node has {}.{}".format(*min(needed), *python.glibc)
    return None


def rank(file_name: str, python: Interpreter) -> tuple[int, ...]:
    """Return a key by which the wheel that fits an interpreter best comes first."""
    name = read_name(file_name)
    assert name is not None
    own = f"cp3{python.version[1]}"
    newest = max(_glibc_of(each, python.machine) or (0, 0) for each in name.platforms)
    return (0 if own in name.pythons else 1, "any" in name.platforms, -newest[0], -newest[1])


def _fits_python(name: WheelName, minor: int) -> bool:
    own = f"cp3{minor}"
    if "py3" in name.pythons or any(
        tag.startswith("py3") and tag[3:].isdigit() and int(tag[3:]) <= minor for tag in name.pythons
    ):
        return "none" in name.abis
    if own in name.pythons and {own, "none"} & {*name.abis}:
        return True
    oldest = [int(match[1]) for tag in name.pythons if (match := _CPYTHON.fullmatch(tag))]
    return "abi3" in name.abis and any(each <= minor for each in oldest)


def _glibc_of(platform: str, machine: str) -> tuple[int, int] | None:
    """Return the oldest glibc that a platform tag allows; None if the tag is for another machine."""
    if platform in ("any", f"linux_{machine}"):
        return 0, 0
    if match := _MANYLINUX.fullmatch(platform):
        return (int(match[1]), int(match[2])) if match[3] == machine else None
    old, _, theirs = platform.partition("_")
    return _OLD_NAMES.get(old) if theirs == machine else None

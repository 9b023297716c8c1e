"""The Python interpreter of an environment, read from the interpreter that runs this module."""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import EnvironmentCannot

BUNDLED = "lib/bundled"  # shared libraries of a Python that `bench push` brought, below its prefix
OLDEST, NEWEST = (3, 11), (3, 13)  # Pythons that an environment can have, by major and minor version


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and the C library of its machine."""

    executable: Path  # without links: a link may later point to another Python
    version: tuple[int, int]
    release: str  # as in 3.11.2
    build: str  # sha256 of the files that are the interpreter
    glibc: tuple[int, int]
    machine: str = "x86_64"

    @property
    def text(self) -> str:
        """The version as major.minor."""
        return "{}.{}".format(*self.version)


def this_interpreter() -> Interpreter:
    """Describe this process's Python; EnvironmentCannot if no locked environment supports it."""
    version = sys.version_info[:2]
    named = "{}.{}".format(*version)
    if not OLDEST <= version <= NEWEST:
        oldest, newest = ("{}.{}".format(*each) for each in (OLDEST, NEWEST))
        raise EnvironmentCannot(
            f"its Python is {named}; environments are for {oldest} to {newest}",
            advice="install one of these, and name it: --python FILE",
        )
    flags = getattr(sys, "abiflags", "")
    if sys.implementation.name != "cpython" or "t" in flags:
        raise EnvironmentCannot(
            f"its Python {named} is {sys.implementation.name} {flags}, and wheels are for CPython",
            advice="name an ordinary CPython of the node: --python FILE",
        )
    machine, word_bits = platform.machine(), 8 * struct.calcsize("P")
    if machine != "x86_64" or word_bits != 64:
        raise EnvironmentCannot(
            f"its Python is for {machine} of {word_bits} bits, and the locks are for x86_64",
            advice="prepare a Python with bench's packages there, and use it: --engine none --python FILE",
        )
    executable = Path(sys.executable).resolve()
    files = [executable, *_shared_library()]
    build = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            build.update(hashlib.file_digest(file, "sha256").digest())
    return Interpreter(executable, version, platform.python_version(), build.hexdigest(), _glibc(), machine)


def _shared_library() -> Iterator[Path]:
    """Yield the library that the interpreter is in, if it is not in the executable itself."""
    name, folder = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
    if not (sysconfig.get_config_var("Py_ENABLE_SHARED") and name and folder):
        return
    for place in (
        folder,
        f"{folder}/{sysconfig.get_config_var('MULTIARCH') or ''}",
        f"{sys.base_prefix}/lib",
    ):
        if (path := Path(place) / name).is_file():
            yield path.resolve()
            return


def _glibc() -> tuple[int, int]:
    if sys.platform != "linux":
        raise NotImplementedError("runs on measured machines, which have Linux")
    try:
        text = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        text = []
    if len(text) != 2 or text[0] != "glibc":
        raise EnvironmentCannot(
            "its C library is not glibc, and no wheel of the lock is for another",
            advice="use a node with Debian, Ubuntu, RHEL or a relative of them, not Alpine",
        )
    major, minor = text[1].split(".")[:2]
    return int(major), int(minor)

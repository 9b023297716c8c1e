"""The Pythons that an environment can have, and what tells one build of Python from another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.environment import interpreter
from bench.environment.interpreter import Interpreter, this_interpreter

Python = Callable[..., Interpreter]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """Return a function that describes a Python in whose process things are as its arguments say."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.12").write_bytes(b"executable")
    (tmp_path / "bin/python").symlink_to("python3.12")

    def describe(
        version: tuple[int, int] = (3, 12),
        machine: str = "x86_64",
        pointer_bytes: int = 8,
        glibc: str | OSError | ValueError | None = "glibc 2.36",
        variables: dict[str, Any] | None = None,
        **of_sys: Any,
    ) -> Interpreter:
        def confstr(_name: str) -> str | None:
            if isinstance(glibc, Exception):
                raise glibc
            return glibc

        usual = {
            "version_info": (*version, 1), "implementation": SimpleNamespace(name="cpython"), "abiflags": "",
            "executable": str(tmp_path / "bin/python"), "base_prefix": str(tmp_path), "platform": "linux",
        }  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(interpreter, "sys", SimpleNamespace(**usual | of_sys))
            patch.setattr(interpreter.platform, "machine", lambda: machine)
            patch.setattr(interpreter.platform, "python_version", lambda: "3.12.1")
            patch.setattr(interpreter.struct, "calcsize", lambda kind: {"P": pointer_bytes}[kind])
            patch.setattr(interpreter.sysconfig, "get_config_var", (variables or {}).get)
            patch.setattr(interpreter.os, "confstr", confstr)
            return this_interpreter()

    return describe


def sha256_of(*contents: bytes) -> str:
    """Return the digest of the digests of some files."""
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents)).hexdigest()


def test_a_python_is_described_without_links(python: Python, tmp_path: Path) -> None:
    assert python() == Interpreter(
        tmp_path / "bin/python3.12", (3, 12), "3.12.1", sha256_of(b"executable"), (2, 36), "x86_64"
    )
    assert python().text == "3.12"


@pytest.mark.parametrize(
    ("version", "is_supported"),
    [
        ((3, 10), False),
        ((3, 11), True),
        ((3, 13), True),
        ((3, 14), False),
        ((2, 12), False),
        ((4, 12), False),
    ],
)
def test_pythons_from_3_11_to_3_13_are_supported(
    python: Python, version: tuple[int, int], is_supported: bool
) -> None:
    if is_supported:
        assert python(version).version == version
        return
    with pytest.raises(EnvironmentCannot) as caught:
        python(version)
    named = "{}.{}".format(*version)
    assert caught.value.message == f"its Python is {named}; environments are for 3.11 to 3.13"
    assert caught.value.advice == "install one of these, and name it: --python FILE"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"implementation": SimpleNamespace(name="pypy")},
            "its Python 3.12 is pypy , and wheels are for CPython",
        ),
        ({"abiflags": "t"}, "its Python 3.12 is cpython t, and wheels are for CPython"),
        ({"abiflags": "td"}, "its Python 3.12 is cpython td, and wheels are for CPython"),
    ],
)
def test_only_ordinary_cpythons_are_supported(python: Python, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        python(**changes)
    assert caught.value.message == named
    assert caught.value.advice == "name an ordinary CPython of the node: --python FILE"
    assert python(abiflags="d").version == (3, 12)


@pytest.mark.parametrize(
    ("machine", "pointer_bytes", "named"),
    [("aarch64", 8, "aarch64 of 64 bits"), ("x86_64", 4, "x86_64 of 32 bits")],
)
def test_only_pythons_for_x86_64_are_supported(
    python: Python, machine: str, pointer_bytes: int, named: str
) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        python(machine=machine, pointer_bytes=pointer_bytes)
    assert caught.value.message == f"its Python is for {named}, and the locks are for x86_64"
    assert caught.value.advice is not None and "--engine none --python FILE" in caught.value.advice


@pytest.mark.parametrize(
    "said", [None, "", "glibc", "musl 1.2", "glibc 2.36 x", ValueError("x"), OSError("x")]
)
def test_only_glibc_is_supported(python: Python, said: Any) -> None:
    with pytest.raises(EnvironmentCannot, match="its C library is not glibc") as caught:
        python(glibc=said)
    assert caught.value.advice is not None and "not Alpine" in caught.value.advice


@pytest.mark.parametrize(("said", "version"), [("glibc 2.36", (2, 36)), ("glibc 2.36.9", (2, 36))])
def test_a_glibc_is_known_by_two_numbers(python: Python, said: str, version: tuple[int, int]) -> None:
    assert python(glibc=said).glibc == version


def test_nodes_have_linux(python: Python) -> None:
    with pytest.raises(NotImplementedError):
        python(platform="darwin")


@pytest.mark.parametrize("place", ["lib64", "lib64/x86_64-linux-gnu", "lib"])
def test_a_python_in_a_shared_library_is_that_library_too(python: Python, tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "libpython3.12.so.1.0").write_bytes(b"library")
    shared = {
        "Py_ENABLE_SHARED": 1, "INSTSONAME": "libpython3.12.so.1.0", "LIBDIR": str(tmp_path / "lib64"),
        "MULTIARCH": "x86_64-linux-gnu",
    }  # fmt: skip
    assert python(variables=shared).build == sha256_of(b"executable", b"library")
    for missing in ("Py_ENABLE_SHARED", "INSTSONAME", "LIBDIR"):
        assert python(variables={**shared, missing: None}).build == sha256_of(b"executable")


def test_of_several_libraries_the_first_one_counts(python: Python, tmp_path: Path) -> None:
    for place in ("lib64", "lib"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "libpython").write_bytes(place.encode())
    shared = {"Py_ENABLE_SHARED": 1, "INSTSONAME": "libpython", "LIBDIR": str(tmp_path / "lib64")}
    assert python(variables=shared).build == sha256_of(b"executable", b"lib64")
    (tmp_path / "lib64/libpython").unlink()
    assert python(variables=shared).build == sha256_of(b"executable", b"lib")


def test_the_python_of_this_machine_is_described() -> None:
    found = this_interpreter()
    assert found.executable.is_file() and found.machine == "x86_64"
    assert len(found.build) == 64

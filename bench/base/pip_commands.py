"""Commands that install packages of given versions with pip, in an order in which they can be built. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

# Packages whose build imports torch, which pip's isolated builds do not see; they are compiled by nvcc.
BUILT_WITH_TORCH = ("causal-conv1d", "flash-attn", "mamba-ssm")
BUILD_TOOLS = ("ninja", "packaging", "setuptools", "wheel")
BUILD = "pip install --no-build-isolation --no-cache-dir"  # with the torch that is installed
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"\d[A-Za-z0-9.!+_-]*")
_PYTHON = re.compile(r"(\d+\.\d+)\.\S+")
_TORCH_BUILD = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")


def environment_line(python: str) -> str | None:
    """Return the command that makes an environment with this Python, such as 3.12.3; None for another text.

    Versions of packages exist for some versions of Python only: numpy 2.5 begins with Python 3.12.
    """
    found = _PYTHON.fullmatch(python)
    return f"python{found[1]} -m venv .venv && . .venv/bin/activate" if found else None


def install_lines(packages: Mapping[str, str], rebuilt: Mapping[str, str] = {}) -> Iterator[str]:
    """Yield the commands that install these versions: torch and all others, then what is built with torch.

    `rebuilt` are installed in these versions already, but were built with another torch. Nothing that is
    built comes from pip's cache: it keeps one build of each version, made with whichever torch was there.
    Names and versions may be a stranger's words: malformed ones are left out, so that none becomes an option.
    """
    known = dict(_known(packages))
    first = [f"{name}=={version}" for name, version in known.items() if name not in BUILT_WITH_TORCH]
    built = [f"{name}=={version}" for name, version in known.items() if name in BUILT_WITH_TORCH]
    again = [f"{name}=={version}" for name, version in _known(rebuilt)]
    tools = BUILD_TOOLS if built or again else ()
    if first or tools:
        index = _torch_index(known.get("torch", ""))
        yield f"pip install {shlex.join([*index, *first, *tools])}"
    if built:
        yield f"{BUILD} {shlex.join(built)}"
    if again:
        yield f"{BUILD} --force-reinstall --no-deps {shlex.join(again)}"


def _known(packages: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((n, v) for n, v in sorted(packages.items()) if _NAME.fullmatch(n) and _VERSION.fullmatch(v))


def _torch_index(version: str) -> tuple[str, ...]:
    """Return the options for the index that has this build of torch; PyPI has none with a build tag."""
    build = version.partition("+")[2]
    if not _TORCH_BUILD.fullmatch(build):
        return ()
    return "--extra-index-url", f"https://download.pytorch.org/whl/{build}"

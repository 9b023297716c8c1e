"""Runs inside the build, once a layer: installs one group of the lock's wheels, or our own code.

    install.py libraries|torch|kernels|rest|bench

Everything comes from /build, which is mounted for the build and no part of the image: no network, no cache,
no bytecode. pip itself runs from its wheel and is not in the image either.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path("/build")
# In the order of the layers: what changes least, and weighs most, comes first.
GROUPS = {
    "libraries": re.compile(r"nvidia-(?!ml-py|cutlass).*|cuda-.*"),
    "torch": re.compile(r"torch|triton"),
    "kernels": re.compile(r"flash-attn|mamba-ssm|causal-conv1d|deepspeed"),
    "rest": re.compile(r".*"),
}


def main(group: str) -> int:
    if group == "bench":
        return install_ours()
    pins = {_name(line): line for line in (BUILD / "pins.txt").read_text().splitlines()}
    chosen = [line for name, line in sorted(pins.items()) if _group(name) == group]
    if not chosen:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(chosen) + "\n")
        requirements.flush()
        return pip("--no-deps", "--require-hashes", "--only-binary=:all:", "-r", requirements.name)


def install_ours() -> int:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "bench"
        shutil.copytree(BUILD / "source", source)  # setuptools writes beside what it builds
        code = pip("--no-deps", "--no-build-isolation", str(source))
    for trace in Path("/usr/local").glob("lib/python3*/dist-packages/bench-*.dist-info/direct_url.json"):
        trace.unlink()  # names the temporary folder
    return code


def pip(*arguments: str) -> int:
    (wheel,) = (BUILD / "wheels").glob("pip-*.whl")
    options = ["--no-index", f"--find-links={BUILD / 'wheels'}", "--no-compile", "--no-cache-dir", "--quiet"]
    options += ["--break-system-packages", "--root-user-action=ignore", "--no-warn-script-location"]
    command = [sys.executable, f"{wheel}/pip", "install", "--isolated", "--disable-pip-version-check"]
    return subprocess.run([*command, *options, *arguments], check=False).returncode


def _name(line: str) -> str:
    return line.partition("==")[0]


def _group(name: str) -> str:
    return next(group for group, pattern in GROUPS.items() if pattern.fullmatch(name))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

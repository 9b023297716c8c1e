"""Install one group of the lock's wheels, or bench itself; runs inside the build, once per layer.

    install.py libraries|torch|rest|bench|builder

Everything comes from /build, which is mounted during the build and is not part of the image. There is no
network, no cache and no bytecode. pip runs from its wheel and is not part of the image either.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path("/build")
# In the order of the layers: the largest and least often changed group comes first.
GROUPS = {
    "libraries": re.compile(r"nvidia-(?!ml-py|cutlass).*|cuda-.*"),
    "torch": re.compile(r"torch|triton"),
    "rest": re.compile(r".*"),
}


def main(group: str) -> int:
    """Install the packages of a group; return pip's exit code, or 0 for a group without packages."""
    if group == "bench":
        return install_ours()
    pins = "builder.txt" if group == "builder" else "pins.txt"
    lines = sorted((BUILD / pins).read_text().splitlines())
    chosen = [line for line in lines if group in ("builder", _group(_name(line)))]
    if not chosen:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(chosen) + "\n")
        requirements.flush()
        return pip("install", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", requirements.name)


def install_ours() -> int:
    """Install bench through a wheel; pip would record the folder's name if it installed from the folder."""
    with tempfile.TemporaryDirectory() as work:
        source, wheels = Path(work) / "source", Path(work) / "wheels"
        shutil.copytree(BUILD / "source", source)  # setuptools writes into the source folder
        make = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))
        return pip("wheel", *make) or pip("install", "--no-deps", f"--find-links={wheels}", "bench-appliance")


def pip(verb: str, *arguments: str) -> int:
    """Run pip from its wheel, with the mounted wheels as its only index; return its exit code."""
    (wheel,) = (BUILD / "wheels").glob("pip-*.whl")
    command = [sys.executable, "-B", f"{wheel}/pip", verb, f"--find-links={BUILD / 'wheels'}"]
    command += ["--isolated", "--disable-pip-version-check", "--quiet", "--no-index", "--no-cache-dir"]
    if verb == "install":
        command += ["--no-compile", "--break-system-packages", "--root-user-action=ignore"]
    return subprocess.run([*command, *arguments], check=False).returncode


def _name(line: str) -> str:
    return line.partition("==")[0]


def _group(name: str) -> str:
    return next(group for group, pattern in GROUPS.items() if pattern.fullmatch(name))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

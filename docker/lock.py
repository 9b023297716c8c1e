#!/usr/bin/env python3
"""Maintain the locks of the images: `lock.py refresh` creates them again, `lock.py check` compares them.

refresh needs uv and mmdebstrap; UV_FIND_LINKS or UV_INDEX gives the location of torch without CUDA. check
needs none of these, and no network. `lock.py wheels [DIR]` is the last part of refresh: it writes what the
locked wheels contain, and downloads those that are new, gigabytes for a new torch; DIR may have them already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.images.debian_base import newest_packages
from bench.images.locked_wheels import check_wheels
from bench.images.locks import check_all, read_pins
from bench.images.variants import Variant, images
from release import locked_contents, operator_lock

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"
DATA = ROOT / "bench/data/images.json"


def main(arguments: list[str]) -> int:
    """Do what the first argument says; return an exit code: 1 if locks disagree, 2 for other arguments."""
    match arguments:
        case ["check"]:
            faults = [*check_all(ROOT), *check_wheels(ROOT), *operator_lock.unmet(ROOT)]
            print("\n".join(faults) or "locks, pyproject.toml and images agree", file=sys.stderr)
            return 1 if faults else 0
        case ["refresh"]:
            refresh_debian()
            for variant in images().variants:
                refresh_wheels([*_ours(variant), f"docker/{variant.name}.in"], ROOT / variant.lock)
                refresh_for_kernels(variant)
            refresh_wheels(["docker/builder.in"], DOCKER / "builder.lock")
            refresh_operator()
            return main(["wheels"])
        case ["wheels", *folder] if len(folder) <= 1:
            locked_contents.refresh(ROOT, *map(Path, folder))
            return main(["check"])
    print(__doc__, file=sys.stderr)
    return 2


def refresh_debian() -> None:
    """Lock the newest packages of the suite, and set the time that images carry to that of the packages."""
    known = json.loads(DATA.read_text())
    known["epoch"] = int(time.time()) // 86_400 * 86_400
    wanted = [line for line in (DOCKER / "debian.in").read_text().splitlines() if not line.startswith("#")]
    debs = newest_packages(wanted, known["suite"], known["epoch"])
    columns = "name, version, sha256, path in a mirror's pool"
    head = f"# Debian {known['suite']}: {columns}. Made by `make lock` from debian.in.\n"
    (DOCKER / "debian.lock").write_text(head + "".join(f"{deb.line}\n" for deb in debs))
    DATA.write_text(json.dumps(known, indent=1) + "\n")


def _ours(variant: Variant) -> list[str]:
    return ["pyproject.toml", *(f"--extra={extra}" for extra in variant.extras)]


def refresh_operator() -> None:
    """Lock the operator's side, for every system and Python that it runs on."""
    extras = [f"--extra={extra}" for extra in operator_lock.EXTRAS]
    lock_again(["--universal", "--python-version=3.11", "pyproject.toml", *extras], ROOT / operator_lock.LOCK)


def refresh_wheels(inputs: list[str], lock: Path) -> None:
    """Lock the newest wheels that satisfy the inputs, files of requirements, for the images' Python."""
    lock_again([*of_images(), *inputs], lock)


def of_images() -> list[str]:
    """Return uv's options for the Python and the platform of the images."""
    python, platform = images().python, "x86_64-manylinux_2_28"
    return [f"--python-version={python}", f"--python-platform={platform}", "--allow-unsafe"]


def lock_again(arguments: list[str], lock: Path) -> None:
    """Write a lock of the newest versions, without regard to those that it has now."""
    lock.unlink(missing_ok=True)
    compile_lock(["--upgrade", "--generate-hashes", *arguments, f"--output-file={lock.relative_to(ROOT)}"])


def compile_lock(arguments: list[str]) -> None:
    """Let uv choose versions; its output has neither the indexes nor the reasons of a version."""
    options = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    subprocess.run(["uv", "pip", "compile", *options, *arguments], check=True, cwd=ROOT)


def refresh_for_kernels(variant: Variant) -> None:
    """Write into images.json which packages of a variant's lock nothing but its compiled kernels needs."""
    pins = read_pins(ROOT / variant.lock)
    with tempfile.TemporaryDirectory() as work:
        constraints, never, needed = (Path(work) / name for name in ("locked.txt", "never.txt", "needed.txt"))
        constraints.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins.values()))
        never.write_text("".join(f"{name}; python_version < '3'\n" for name in variant.kernels))
        options = [f"--constraints={constraints}", f"--overrides={never}", f"--output-file={needed}"]
        compile_lock([*of_images(), *_ours(variant), f"docker/{variant.name}.in", *options])
        left = {line.split("==")[0] for line in needed.read_text().splitlines()}
    known = json.loads(DATA.read_text())
    (entry,) = (each for each in known["variants"] if each["name"] == variant.name)
    entry["for_kernels"] = sorted(pins.keys() - left - {*variant.kernels})
    DATA.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

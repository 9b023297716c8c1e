#!/usr/bin/env python3
"""Maintain the locks of the images: `lock.py refresh` creates them again, `lock.py check` compares them.

refresh needs uv and mmdebstrap; UV_FIND_LINKS or UV_INDEX gives the location of torch without CUDA. check
needs none of these, and no network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.images.debian_base import bootstrap
from bench.images.locks import check_all
from bench.images.variants import Variant, images
from release import operator_lock

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"
DATA = ROOT / "bench/data/images.json"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["check"]:
            faults = [*check_all(ROOT), *operator_lock.unmet(ROOT)]
            print("\n".join(faults) or "locks, pyproject.toml and images agree", file=sys.stderr)
            return 1 if faults else 0
        case ["refresh"]:
            refresh_debian()
            for variant in images().variants:
                refresh_wheels([*_ours(variant), f"docker/{variant.name}.in"], ROOT / variant.lock)
            refresh_wheels(["docker/builder.in"], DOCKER / "builder.lock")
            refresh_operator()
            return main(["check"])
    print(__doc__, file=sys.stderr)
    return 2


def refresh_debian() -> None:
    """Lock the newest packages of the suite, and set the time that images carry to that of the packages."""
    known = json.loads(DATA.read_text())
    known["epoch"] = int(time.time()) // 86_400 * 86_400
    wanted = [line for line in (DOCKER / "debian.in").read_text().splitlines() if not line.startswith("#")]
    with tempfile.TemporaryDirectory() as work:
        debs = bootstrap(wanted, known["suite"], Path(work) / "base.tar", (), known["epoch"])
    head = f"# Debian {known['suite']}: name, version, sha256. Made by `make lock` from debian.in.\n"
    (DOCKER / "debian.lock").write_text(head + "".join(f"{deb.line}\n" for deb in debs))
    DATA.write_text(json.dumps(known, indent=1) + "\n")


def _ours(variant: Variant) -> list[str]:
    return ["pyproject.toml", *(f"--extra={extra}" for extra in variant.extras)]


def refresh_operator() -> None:
    """Lock the operator's side, for every system and Python that it runs on."""
    extras = [f"--extra={extra}" for extra in operator_lock.EXTRAS]
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--upgrade",
        "--generate-hashes",
        "--universal",
        "--no-header",
    ]
    command += ["--python-version=3.11", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate"]
    command += ["pyproject.toml", *extras, f"--output-file={operator_lock.LOCK}"]
    (ROOT / operator_lock.LOCK).unlink(missing_ok=True)
    subprocess.run(command, check=True, cwd=ROOT)


def refresh_wheels(inputs: list[str], lock: Path) -> None:
    command = ["uv", "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-emit-index-url"]
    command += [
        f"--python-version={images().python}",
        "--python-platform=x86_64-manylinux_2_28",
        "--no-header",
    ]
    command += [
        "--no-emit-find-links",
        "--no-annotate",
        "--allow-unsafe",
        *inputs,
        f"--output-file={lock.relative_to(ROOT)}",
    ]
    lock.unlink(missing_ok=True)
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The CPU image, and the image after a change of our code: each is built once in a session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import bench as package
from bench.images.fetch import wheels as download
from bench.images.locks import read_pins
from tests.e2e.services import SYSTEM, locked, require

ROOT = Path(package.__file__).parent.parent
# mmdebstrap starts a Python for each package: Debian's, which begins sooner than a wrapper in a user's PATH.
SYSTEM_FIRST = f"/usr/sbin:/usr/bin:/sbin:/bin:{SYSTEM}"
NOT_IN_IMAGES = shutil.ignore_patterns(".git", ".venv", "results", "out", "tests")


class Images:
    """A folder with `one.tar`, `changed.tar` and the cache with which both are built at their first use.

    Workers that need the same image at the same time wait for one of them to build it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def one(self) -> dict[str, Any]:
        """The JSON document that the build of one.tar prints."""
        return self._once("one", self._build_one)

    @cached_property
    def changed(self) -> dict[str, Any]:
        """The JSON document of changed.tar's build, from a source with one more line, without a network."""
        assert self.one
        return self._once("changed", self._build_changed)

    def _once(self, name: str, build: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        document = self.folder / f"{name}.json"
        with locked(self.folder / f"{name}.lock"):
            if not document.exists():
                document.write_text(json.dumps(build()))
        found: dict[str, Any] = json.loads(document.read_text())
        return found

    @cached_property
    def wheels(self) -> Mapping[str, Path]:
        """The wheels of the CPU's lock by name, which are downloaded once, into the cache of the builds."""
        pins = read_pins(ROOT / "docker/cpu.lock")
        with locked(self.folder / "wheels.lock"):
            return download(pins.values(), self.folder / "cache/wheels", "3.11")

    def _build_one(self) -> dict[str, Any]:
        assert self.wheels
        return build_image(self.folder / "cache", self.folder / "one.tar", ROOT)

    def _build_changed(self) -> dict[str, Any]:
        source = self.folder / "changed"
        shutil.copytree(ROOT, source, ignore=NOT_IN_IMAGES)
        with (source / "bench/records/text.py").open("a") as file:
            file.write("# a change\n")
        return build_image(self.folder / "cache", self.folder / "changed.tar", source, ("unshare", "--net"))


def build_image(
    cache: Path, out: Path, source: Path | None, within: Sequence[str] = (), code: Path = ROOT
) -> dict[str, Any]:
    """Build the CPU image by `bench image build` of `code`, as a child of the command `within`."""
    require("mmdebstrap", "buildah", "gpg")  # mmdebstrap finds its keys by gpg
    cache.mkdir(parents=True, exist_ok=True)
    words = ["image", "build", "cpu", "--cache", cache, "--out", out, "--json"]
    words += ["--source", source] if source else []
    done = subprocess.run(
        [*within, sys.executable, "-m", "bench", *map(str, words)],
        cwd=cache,
        env=os.environ | {"PATH": SYSTEM_FIRST, "PYTHONPATH": str(code), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found

"""The engine `none` runs bench without a container or an image, in this Python environment."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from bench.base.errors import BadInput
from bench.images.container import OUT, Container
from bench.images.engines import EngineFacts, Inspected


def argv(container: Container) -> list[str]:
    """Return the command for this Python, with the container's paths replaced by the host's."""
    places = {at: str(file) for at, file in container.inputs.items()} | {OUT: str(container.out)}
    return [sys.executable, "-m", "bench", *(places.get(word, word) for word in container.command)]


class NoEngine:
    """The engine `none`, which has no images."""

    name = "none"

    def facts(self) -> EngineFacts:
        return EngineFacts("none", platform.release(), "runtime", None)

    def load(self, archive: Path) -> None:
        raise BadInput(f"--engine none uses no images, so {archive} cannot be loaded")

    def save(self, image: str, out: Path) -> None:
        raise BadInput(f"--engine none uses no images, so {image} cannot be saved")

    def inspect(self, image: str) -> Inspected | None:
        return None

    def run(self, container: Container) -> int:
        return subprocess.run(argv(container), check=False).returncode


ENGINE = NoEngine()

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
        """Return this machine's kernel as the version; a run without a container sees all GPUs."""
        return EngineFacts("none", platform.release(), "runtime", None)

    def load(self, archive: Path) -> None:
        """Refuse: there is nothing that an image could be loaded into."""
        raise BadInput(f"--engine none uses no images, so {archive} cannot be loaded")

    def save(self, image: str, out: Path) -> None:
        """Refuse: there is nothing that an image could be saved from."""
        raise BadInput(f"--engine none uses no images, so {image} cannot be saved")

    def inspect(self, image: str) -> Inspected | None:
        """Return None, by which callers know that a run has no image."""
        return None

    def run(self, container: Container) -> int:
        """Run bench by this Python; Ctrl-C reaches it from the terminal."""
        return subprocess.run(argv(container), check=False).returncode


ENGINE = NoEngine()

"""Container engines behind one protocol, `Engine`. Each engine is a module, which `find_engine` imports.

Imports the modules of `images`. Runs the engines' commands, or talks to Docker's API.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Literal, Protocol

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.names import CONTAINER_ENGINES, ENGINES
from bench.base.operating_system import forbid_core_dumps
from bench.base.signals import answered_by
from bench.images.archive import Identity
from bench.images.container import Container
from bench.images.engines.output import ContainerOutput

Gpus = Literal["cdi", "runtime"]  # how an engine passes GPUs to a container: by CDI, or NVIDIA's runtime


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine that answers, on this machine or on a node."""

    name: str
    version: str
    gpus: Gpus | None  # None: the engine cannot pass GPUs to containers
    storage: str | None  # folder of the engine's images, to measure free space


@dataclass(frozen=True, slots=True)
class Inspected:
    """An image in an engine's store."""

    identity: Identity
    labels: Mapping[str, str]
    runnable: str  # a name that always means this image, even if its tag moves


class Engine(Protocol):
    """A container engine of this machine. Methods that fail raise EnvironmentCannot with advice."""

    name: str

    def facts(self) -> EngineFacts:
        """Ask the engine for its version and abilities."""

    def load(self, archive: Path) -> None:
        """Load an archive that `bench image build` or `save` wrote."""

    def save(self, image: str, out: Path) -> None:
        """Write an image of the engine's store to a file."""

    def inspect(self, image: str) -> Inspected | None:
        """Return the stored image that `run` would start; the engine `none` returns None."""

    def run(self, container: Container) -> int:
        """Run the container, show what it prints, and return its exit code. Ctrl-C stops it with SIGTERM."""


_PIECE_BYTES = 2**16
_STRAGGLER_SECONDS = 10.0  # to wait for the end of output, which a process left behind may keep open
_NOT_STARTED = (125, 126, 127)  # exit codes of container engines that could not start the container

# Runs a command on this or another machine. Returns exit status and output; None: the program is missing.
Shell = Callable[[Sequence[str]], tuple[int, str] | None]


def here(command: Sequence[str]) -> tuple[int, str] | None:
    """Run a command on this machine (a `Shell`)."""
    if shutil.which(command[0]) is None:
        return None
    # There is no timeout: loading a large image takes minutes, and Ctrl-C ends a command that hangs.
    done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
    return done.returncode, done.stdout + done.stderr


def follow(command: Sequence[str]) -> int:
    """Run an engine's command, show what it prints on this terminal, and return its exit code.

    The container inherits the limits of this process, which from then on allows no core dumps.
    The first signal that would end this process becomes SIGTERM for the engine, a second signal SIGKILL. The
    engine runs in a separate session, so that the terminal's Ctrl-C does not reach the engine directly.
    """
    process: subprocess.Popen[bytes] | None = None
    received = passed_on = 0  # counts of signals

    def pass_on() -> None:
        nonlocal passed_on
        if process is not None and received > passed_on:
            passed_on = received
            process.terminate() if passed_on == 1 else process.kill()

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        pass_on()

    # A handler that raised an exception could interrupt Popen, and leave the engine running unattended.
    output = ContainerOutput()
    with answered_by(interrupted):
        forbid_core_dumps()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        pass_on()
        readers = [_reader(process.stdout, output.out), _reader(process.stderr, output.err)]
        code = process.wait()
        for reader in readers:
            reader.join(_STRAGGLER_SECONDS)
    output.end()
    if code in _NOT_STARTED:
        raise EnvironmentCannot(f"{command[0]} could not start the image; its own message is above")
    return code


def _reader(pipe: IO[bytes] | None, take: Callable[[bytes], object]) -> threading.Thread:
    """Start a thread that passes on what comes through a pipe, and closes it at its end."""
    assert pipe is not None

    def read() -> None:
        with pipe:
            while data := os.read(pipe.fileno(), _PIECE_BYTES):
                take(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def no_image(engine: str, image: str) -> EnvironmentCannot:
    """Return the error for a name that is neither a file nor an image in the engine's store."""
    return EnvironmentCannot(
        f"{engine} has no image {image}, and no file has this name",
        advice=f"{engine} images lists what it has; bench image load FILE --engine {engine} adds an image",
    )


def find_engine(name: str) -> Engine:
    """Return the engine called `name`; `auto` is the first container engine that answers on this machine."""
    if name == "auto":
        return _first_that_answers()
    if name not in ENGINES:
        raise BadInput(f'there is no engine "{name}"', advice=f"one of: auto, {', '.join(ENGINES)}")
    module = importlib.import_module(f"bench.images.engines.{name}")
    engine: Engine = module.ENGINE
    return engine


def _first_that_answers() -> Engine:
    reasons = []
    for name in CONTAINER_ENGINES:
        engine = find_engine(name)
        try:
            engine.facts()
        except EnvironmentCannot as error:
            reasons.append(f"{name}: {error.message}")
            continue
        return engine
    advice = "install docker.io or podman, or measure without an image: --engine none"
    raise EnvironmentCannot("no container engine answers:\n  " + "\n  ".join(reasons), advice=advice)

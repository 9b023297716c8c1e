"""What runs containers. One file an engine; each says how it does what `Engine` asks for."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.signals import answered_by
from bench.images.archive import Identity
from bench.images.container import Container

NAMES = ("docker", "podman", "apptainer", "none")
Gpus = Literal["cdi", "runtime"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    name: str
    version: str
    gpus: Gpus | None  # how it hands GPUs to a container; None: it cannot
    storage: str | None  # where images go, to ask how much room there is


@dataclass(frozen=True, slots=True)
class Inspected:
    identity: Identity
    labels: Mapping[str, str]
    runnable: str  # the name by which exactly this image is run, even if another takes its tag meanwhile


class Engine(Protocol):
    """Each call either does what it says or raises EnvironmentCannot with what to do."""

    name: str

    def facts(self) -> EngineFacts: ...

    def load(self, archive: Path) -> None:
        """Takes in what `bench image build` or `save` wrote."""

    def save(self, image: str, out: Path) -> None:
        """Writes an image of its store to a file."""

    def inspect(self, image: str) -> Inspected | None:
        """The image that would run; None where there is no image."""

    def run(self, container: Container) -> int:
        """Runs it to its end with this terminal's streams; its exit code. Ctrl-C ends it gently."""


_NOT_STARTED = (125, 126, 127)  # how container engines end when it is they who failed

# Answers of commands, here or on another machine: exit status and output; None: there is no such program.
Shell = Callable[[Sequence[str]], tuple[int, str] | None]


def here(command: Sequence[str]) -> tuple[int, str] | None:
    if shutil.which(command[0]) is None:
        return None
    # Without a limit of time: loading an image of gigabytes takes minutes, and Ctrl-C ends what hangs.
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def follow(command: Sequence[str]) -> int:
    """Runs an engine's command with this terminal's streams; what ends us is passed on as a polite end.

    In a session of its own: the terminal's Ctrl-C would reach the engine as well, as a second one.
    """
    process: subprocess.Popen[bytes] | None = None
    asked = told = 0

    def tell() -> None:
        nonlocal told
        if process is not None and asked > told:
            told = asked
            process.terminate() if told == 1 else process.kill()

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        tell()

    # Not as an exception: in the middle of starting the engine it would leave it behind, alone.
    with answered_by(interrupted):
        process = subprocess.Popen(command, start_new_session=True)
        tell()
        code = process.wait()
    if code in _NOT_STARTED:
        raise EnvironmentCannot(f"{command[0]} could not start the image; why is above")
    return code


def find_engine(name: str) -> Engine:
    """The engine by name; `auto` is the first that answers here."""
    if name == "auto":
        return _first_that_answers()
    if name not in NAMES:
        raise BadInput(f'"{name}" is no engine', advice=f"there are: auto, {', '.join(NAMES)}")
    module = importlib.import_module(f"bench.images.engines.{name}")
    engine: Engine = module.ENGINE
    return engine


def _first_that_answers() -> Engine:
    reasons = []
    for name in ("docker", "podman", "apptainer"):
        engine = find_engine(name)
        try:
            engine.facts()
        except EnvironmentCannot as error:
            reasons.append(f"{name}: {error.message}")
            continue
        return engine
    raise EnvironmentCannot(
        "no container engine answers here:\n  " + "\n  ".join(reasons),
        advice="install docker.io or podman, or --engine none to measure without an image",
    )

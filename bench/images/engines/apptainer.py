"""Apptainer, where users have no daemon and no root: clusters. Its image is a file made from our archive."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Identity, opened, read_facts
from bench.images.container import CACHE, OUT, RDMA, Container
from bench.images.engines import EngineFacts, Inspected, Shell, follow, here


def argv(container: Container) -> list[str]:
    """`--containall` and `--cleanenv` keep the host out; limits of memory are the scheduler's."""
    c = container
    command = ["apptainer", "run", "--containall", "--cleanenv", "--no-home", "--drop-caps=all", "--no-privs"]
    command += [
        "--no-mount=hostfs,bind-paths",
        *(f"--bind={file}:{at}:ro" for at, file in c.inputs.items()),
        f"--bind={c.out}:{OUT}:rw",
    ]
    # What Apptainer has in memory is as small as its configuration says, 64 MiB if it says nothing: too small
    # for what compilers leave in /cache, and for data and checkpoints in /tmp.
    command += [f"--bind={c.cache}:{CACHE}:rw", f"--workdir={c.cache}"] if c.cache else [f"--scratch={CACHE}"]
    command += [f"--pwd={OUT}"]
    command += [] if c.network else ["--net", "--network=none"]
    command += ["--nv"] if c.gpus else []
    command += [f"--bind={RDMA}"] if c.rdma else []
    command += [f"--env={name}={value}" for name, value in c.settings.items()]
    return [*command, c.image, *c.command]


def build_argv(archive: Path, image: Path) -> list[str]:
    return ["apptainer", "build", "--fix-perms", str(image), f"docker-archive:{archive}"]


class Apptainer:
    """The image is named by its archive; the SIF beside it is named by the identity that it was made from."""

    name = "apptainer"

    def __init__(self, shell: Shell = here) -> None:
        self._shell = shell

    def facts(self) -> EngineFacts:
        answer = self._shell(("apptainer", "--version"))
        if answer is None or answer[0]:
            raise EnvironmentCannot(
                "there is no apptainer here", advice="ask the cluster's staff, or use podman"
            )
        return EngineFacts("apptainer", answer[1].split()[-1], "runtime", None)

    def load(self, archive: Path) -> None:
        image = Path(self.inspect(str(archive)).runnable)
        part = image.with_suffix(".part")  # a build that is cut off leaves what looks like an image
        part.unlink(missing_ok=True)
        answer = self._shell(build_argv(archive, part))
        if answer is None or answer[0]:
            raise EnvironmentCannot(
                f"apptainer build: {answer[1][-300:] if answer else 'there is no apptainer'}"
            )
        part.replace(image)

    def save(self, image: str, out: Path) -> None:
        raise BadInput(f"{image} is no file; apptainer's images are files")

    def inspect(self, image: str) -> Inspected:
        with opened(Path(image)) as file:
            facts = read_facts(file, image)
        return Inspected(facts.identity, facts.labels, str(sif(Path(image), facts.identity)))

    def run(self, container: Container) -> int:
        if not Path(container.image).exists():
            raise EnvironmentCannot(
                f"{container.image} is not made yet", advice="bench image load FILE --engine apptainer"
            )
        with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
            return follow(argv(replace(container, cache=Path(folder))))


def sif(archive: Path, identity: Identity) -> Path:
    return archive.with_name(f"{identity.config.removeprefix('sha256:')[:16]}.sif")


ENGINE = Apptainer()

"""Apptainer, an engine for clusters, whose users have neither a daemon nor root. Its images are files."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot
from bench.images.archive import Identity, facts_of
from bench.images.container import CACHE, OUT, RDMA, Container
from bench.images.engines import EngineFacts, Inspected, Shell, follow, here


def argv(container: Container) -> list[str]:
    """Return an `apptainer run` command, isolated from the host; the cluster's scheduler limits memory."""
    c = container
    command = ["apptainer", "run", "--containall", "--cleanenv", "--no-home", "--drop-caps=all", "--no-privs"]
    command += [
        "--no-mount=hostfs,bind-paths",
        *(f"--bind={file}:{at}:ro" for at, file in c.inputs.items()),
        f"--bind={c.out}:{OUT}:rw",
    ]
    # Apptainer's in-memory folders have 64 MiB by default, too little for compiled kernels in /cache, and for
    # data and checkpoints in /tmp. So the host folder `cache`, if set, replaces them.
    command += [f"--bind={c.cache}:{CACHE}:rw", f"--workdir={c.cache}"] if c.cache else [f"--scratch={CACHE}"]
    command += [f"--pwd={OUT}"]
    command += [] if c.network else ["--net", "--network=none"]
    command += ["--nv"] if c.gpus else []
    command += [f"--bind={RDMA}"] if c.rdma else []
    command += [f"--env={name}={value}" for name, value in c.settings.items()]
    return [*command, c.image, *c.command]


class Apptainer:
    """Apptainer on this machine. Users name an image archive; its .sif file is in the archive's folder."""

    name = "apptainer"

    def __init__(self, shell: Shell = here) -> None:
        self._shell = shell

    def facts(self) -> EngineFacts:
        """Ask for the version; Apptainer passes GPUs by its own --nv, and has no folder of images."""
        answer = self._shell(("apptainer", "--version"))
        if answer is None or answer[0]:
            raise EnvironmentCannot(
                "apptainer is not installed", advice="ask the cluster's staff, or use podman"
            )
        return EngineFacts("apptainer", answer[1].split()[-1], "runtime", None)

    def load(self, archive: Path) -> None:
        """Build the .sif file beside the archive; an interrupted build leaves none."""
        image = Path(self.inspect(str(archive)).runnable)
        part = image.with_suffix(".part")  # since an interrupted build leaves a file that looks like an image
        part.unlink(missing_ok=True)
        command = ("apptainer", "build", "--fix-perms", str(part), f"docker-archive:{archive}")
        answer = self._shell(command)
        if answer is None or answer[0]:
            raise EnvironmentCannot(
                f"apptainer build: {answer[1][-300:] if answer else 'apptainer is not installed'}"
            )
        part.replace(image)

    def save(self, image: str, out: Path) -> None:
        """Refuse: there is no store from which an image could be saved."""
        raise BadInput(f"{image} cannot be saved: Apptainer has no store, its images are files already")

    def inspect(self, image: str) -> Inspected:
        """Hash the archive at the path `image`; the runnable name is the path of its .sif file."""
        facts = facts_of(Path(image))
        return Inspected(facts.identity, facts.labels, str(sif(Path(image), facts.identity)))

    def run(self, container: Container) -> int:
        """Run the .sif file, with a temporary folder as /cache; EnvironmentCannot if it was not loaded."""
        if not Path(container.image).exists():
            raise EnvironmentCannot(
                f"{container.image} does not exist yet", advice="bench image load FILE --engine apptainer"
            )
        with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
            return follow(argv(replace(container, cache=Path(folder))))


def sif(archive: Path, identity: Identity) -> Path:
    """Return the path of the .sif file that `load` makes from an archive."""
    return archive.with_name(f"{identity.config.removeprefix('sha256:')[:16]}.sif")


ENGINE = Apptainer()

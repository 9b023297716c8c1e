"""Podman, used through its command line, with Docker's options in an adapted form."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.images.container import NOBODY, OUT, Container
from bench.images.engines import EngineFacts, Inspected, Shell, docker, follow, here, no_image


def argv(container: Container) -> list[str]:
    """Return a `podman run` command: Docker's options, with a non-executable /out and labels of SELinux."""
    command = ["podman", *map(_tmpfs, docker.argv(container)[1:])]
    bind = command.index(f"--mount=type=bind,source={container.out},target={OUT}")
    command[bind] = f"--volume={container.out}:{OUT}:rw,noexec,nosuid,nodev"
    if _uses_host_labels(container):
        command.insert(2, "--security-opt=label=disable")
    else:
        command[bind] += ",Z"
        command = [
            f"{word},relabel=shared" if word.startswith("--mount=type=bind") else word for word in command
        ]
    # By default --read-only would mount writable, executable memory at /run and /var/tmp.
    command.insert(2, "--read-only-tmpfs=false")
    if container.user[0] != NOBODY:  # rootless: the container's user must be the host's owner of /out
        command.insert(2, "--userns=keep-id")
        # Only root may raise limits, so the container keeps the user's limits.
        command = ["--ulimit=host" if word == docker.MEMLOCK else word for word in command]
    # Podman would leave out its configured limits if one were given here. It passes on its own limit of core
    # dumps, which `follow` and run.sh set to 0.
    return [word for word in command if word != docker.NO_CORE]


def _uses_host_labels(container: Container) -> bool:
    """Whether a container uses devices or folders whose labels SELinux would not let it access.

    Data may be large or belong to somebody else, so it is not relabelled. NVIDIA's devices need
    label=disable too.
    """
    return container.gpus or container.rdma or bool(container.data)


def _tmpfs(word: str) -> str:
    """Replace a tmpfs's owner, which Podman does not support, by mode 1777: the container has one user."""
    if not word.startswith("--tmpfs="):
        return word
    return re.sub(r"uid=\d+,gid=\d+,mode=\d+", "mode=1777,notmpcopyup", word)


_NO_IMAGE = "image not known"  # part of Podman's message about a name that it has no image of


class Podman:
    """Podman on this machine."""

    name = "podman"

    def __init__(self, shell: Shell = here) -> None:
        self._shell = shell

    def facts(self) -> EngineFacts:
        """Ask for version and storage; GPUs need a CDI specification in one of the default folders."""
        info = json.loads(self._ask("info", "--format=json"))
        cdi = any(docker.specifies_nvidia(folder) for folder in docker.CDI_FOLDERS)
        storage = info.get("store", {}).get("graphRoot")
        return EngineFacts("podman", info["version"]["Version"], "cdi" if cdi else None, storage)

    def load(self, archive: Path) -> None:
        """Load an archive into this user's store; EnvironmentCannot with Podman's last line if that fails."""
        self._ask("load", "--quiet", f"--input={archive}")

    def save(self, image: str, out: Path) -> None:
        """Write an image to a new file, in the form that `docker load` reads too."""
        self._ask("save", "--quiet", "--format=docker-archive", f"--output={out}", image, of_image=image)

    def inspect(self, image: str) -> Inspected:
        """Return the stored image, whose id is its configuration's digest; EnvironmentCannot without one."""
        (document,) = json.loads(self._ask("image", "inspect", image, of_image=image))
        config = f"sha256:{document['Id'].removeprefix('sha256:')}"
        identity = Identity(config, tuple(document["RootFS"]["Layers"]))
        return Inspected(identity, document.get("Labels") or {}, config)

    def run(self, container: Container) -> int:
        """Run a container by Podman's command line, as `follow` runs any."""
        return follow(argv(container))

    def _ask(self, *arguments: str, of_image: str = "") -> str:
        answer = self._shell(("podman", *arguments))
        if answer is None:
            raise EnvironmentCannot("podman is not installed", advice="apt-get install podman")
        code, output = answer
        if code:
            if of_image and _NO_IMAGE in output:
                raise no_image("podman", of_image)
            last = (output.strip().splitlines() or ["no reason given"])[-1]
            raise EnvironmentCannot(f"podman {arguments[0]}: {last[:300]}")
        return output


ENGINE = Podman()

"""Podman: Docker's command line without a daemon, and with two options that Docker lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.images.archive import Identity
from bench.images.container import NOBODY, OUT, Container
from bench.images.engines import EngineFacts, Inspected, Shell, docker, follow, here


def argv(container: Container) -> list[str]:
    """As Docker's, but /out is not executable, and no security label keeps a bind mount shut."""
    command = ["podman", *map(_tmpfs, docker.argv(container)[1:])]
    bind = command.index(f"--mount=type=bind,source={container.out},target={OUT}")
    command[bind] = f"--volume={container.out}:{OUT}:rw,noexec,nosuid,nodev"
    # Of its own accord it would put memory that can be written and executed at /run and /var/tmp.
    command[2:2] = ["--security-opt=label=disable", "--read-only-tmpfs=false"]
    if container.user[0] != NOBODY:  # rootless: the user inside is the one outside, whose folder /out is
        command.insert(2, "--userns=keep-id")
        # Who is not root may raise no limit: what they have themselves, they keep.
        command = ["--ulimit=host" if word.startswith("--ulimit=") else word for word in command]
    return command


def _tmpfs(word: str) -> str:
    """Podman knows no owner of a tmpfs: everybody's, which in a container is this one user's."""
    if not word.startswith("--tmpfs="):
        return word
    return re.sub(r"uid=\d+,gid=\d+,mode=\d+", "mode=1777,notmpcopyup", word)


class Podman:
    name = "podman"

    def __init__(self, shell: Shell = here) -> None:
        self._shell = shell

    def facts(self) -> EngineFacts:
        info = json.loads(self._ask("info", "--format=json"))
        specified = any(docker._specified(folder) for folder in docker._CDI)
        storage = info.get("store", {}).get("graphRoot")
        return EngineFacts("podman", info["version"]["Version"], "cdi" if specified else None, storage)

    def load(self, archive: Path) -> None:
        self._ask("load", "--quiet", f"--input={archive}")

    def save(self, image: str, out: Path) -> None:
        self._ask("save", "--quiet", "--format=docker-archive", f"--output={out}", image)

    def inspect(self, image: str) -> Inspected:
        (found,) = json.loads(self._ask("image", "inspect", image))
        config = f"sha256:{found['Id'].removeprefix('sha256:')}"
        return Inspected(
            Identity(config, tuple(found["RootFS"]["Layers"])), found.get("Labels") or {}, config
        )

    def run(self, container: Container) -> int:
        return follow(argv(container))

    def _ask(self, *arguments: str) -> str:
        answer = self._shell(("podman", *arguments))
        if answer is None:
            raise EnvironmentCannot("there is no podman here", advice="apt-get install podman")
        code, output = answer
        if code:
            last = (output.strip().splitlines() or ["no reason given"])[-1]
            raise EnvironmentCannot(f"podman {arguments[0]}: {last[:300]}")
        return output


ENGINE = Podman()

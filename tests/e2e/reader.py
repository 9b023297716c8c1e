"""A reader of the documents who types their lines into a shell, in a folder with what the lines name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.services import SYSTEM
from tests.warm import ROOT

BIN = Path(sys.executable).parent
# Shell that gives a checkout this environment as its own, so that make installs nothing.
LINK_ENVIRONMENT = (
    f"mkdir .venv && ln -s {BIN} {BIN.parent}/lib {BIN.parent}/pyvenv.cfg .venv && touch .venv/.installed"
)


@dataclass(frozen=True)
class Reader:
    """A reader whose `bench` is this checkout's.

    `stands_for` has what the documents cannot know, such as a digest, by the placeholder that they print;
    `ssh_config` is what the reader's machine has in /etc/ssh/ssh_config, which names the keys of nodes.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stands_for: Mapping[str, str] = field(default_factory=dict)
    ssh_config: Path | None = None

    def type(self, line: str, code: int = 0) -> str:
        """Run a line of bash, which must end with the code; return what it printed on both outputs."""
        environment = {"HOME": str(self.folder), "PYTHONPATH": str(ROOT), "PATH": SYSTEM} | self.environment
        environment["PATH"] = f"{self.folder}/programs:{BIN}:{environment['PATH']}"
        # Tests run under `make test-e2e`, the reader does not: make tells a make inside it to print more.
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
        }
        done = subprocess.run(
            [*self._inside(), "bash", "-c", self.filled(line)], cwd=self.folder, env=outside | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            errors="replace", check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def _inside(self) -> list[str]:
        """Return the beginning of a command that runs on the reader's machine."""
        if self.ssh_config is None:
            return []
        mounted = 'mount --bind "$0" /etc/ssh/ssh_config && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mounted, str(self.ssh_config)]

    def filled(self, line: str) -> str:
        for placeholder, value in self.stands_for.items():
            line = line.replace(placeholder, value)
        return line

"""Run shell scripts in the middle of others: another push's step before any program that a script starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from bench.push.remote import CommandResult, Here

_PROGRAMS = ("chmod", "find", "ls", "mkdir", "mktemp", "mv", "rm", "rmdir", "tar")
# Counts the programs that were started, and runs `other` before the one whose number is in `at`.
_PROGRAM = """#!/bin/sh
PATH=/usr/bin:/bin
cd {folder}
n=$(($(cat count) + 1))
echo $n >count
[ $n != "$(cat at)" ] || {{ sh other >/dev/null 2>&1; echo $? >code; }}
cd "$OLDPWD"
exec {name} "$@"
"""


class Interleaved(Here):
    """A node on which another push does something in the middle of a script."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for name in _PROGRAMS:
            (folder / name).write_text(_PROGRAM.format(folder=folder, name=name))
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        (self.folder / "count").write_text("0")
        (self.folder / "at").write_text("0")

    def at_every_program(self, other: str, work: Callable[[], object]) -> Iterator[int | None]:
        """Do the work once for each program that it starts, with `other` before that program.

        Yields the exit code of `other` after each time, and None once the work starts no further program.
        """
        (self.folder / "other").write_text(other)
        for at in range(1, 1000):
            (self.folder / "count").write_text("0")
            (self.folder / "at").write_text(str(at))
            work()
            (self.folder / "at").write_text("0")
            code = self.folder / "code"
            yield int(code.read_text()) if code.exists() else None
            if not code.exists():
                return
            code.unlink()
        raise AssertionError("the work starts programs without end")


class Between(Here):
    """A node on which another push does something before the first script that contains a text."""

    def __init__(self, text: str, other: Callable[[], object]) -> None:
        self._text, self._other = text, other

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        if self._text and self._text in script:
            self._text = ""
            self._other()
        return super().ask(script, pieces, seconds=seconds)


def run(script: str) -> int:
    """Run a script that nothing interrupts; return its exit code."""
    return subprocess.run(
        ["sh", "-c", script], env=os.environ | {"PATH": "/usr/bin:/bin"}, check=False
    ).returncode

"""A pager for the output of a command on a terminal, like git's: started with the first text, if at all."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

NONE = ("", "cat")  # pagers that mean no pager
# less ends if all fits on one screen (F), keeps colours (R) and leaves the text on the screen (X).
DEFAULTS = {"LESS": "FRX", "LV": "-c"}


def pager_of(environment: Mapping[str, str]) -> str | None:
    """Return the pager's command: BENCH_PAGER, PAGER or less; None if no pager is installed or wanted."""
    chosen = (environment.get(name) for name in ("BENCH_PAGER", "PAGER"))
    command = next((one for one in chosen if one is not None), "less").strip()
    if command in NONE or environment.get("TERM", "dumb") in ("", "dumb"):
        return None
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError):
        return None
    return command if shutil.which(program, path=environment.get("PATH")) else None


class Pager:
    """A running pager; it shows the text that is written to `stdin`."""

    def __init__(self, command: str, like: TextIO) -> None:
        """Start the pager; its texts are encoded as those of the stream `like`."""
        words = ["sh", "-c", command]
        environment = DEFAULTS | os.environ
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, env=environment, encoding=like.encoding, errors=like.errors
        )
        assert self._process.stdin is not None
        self.stdin: TextIO = self._process.stdin  # type: ignore[assignment]  # Popen[str] has IO[str]

    def wait(self) -> None:
        """Let the user read to the end; an interrupt is the pager's own, and reaches it from the terminal."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(BrokenPipeError):
                self.stdin.close()
            self._process.wait()
        finally:
            signal.signal(signal.SIGINT, before)

"""Run a command on a node through ssh or kubectl on this machine, whose pipes are those of the command."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from bench.push.connection import ConnectionBroke

_CHUNK = 2**18  # bytes


class ProcessChannel:
    """A process on this machine that carries one command of a node; its pipes are the command's."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
        if sys.platform == "win32":
            raise NotImplementedError("Windows cannot wait for pipes")
        os.set_blocking(self._pipe("stdin").fileno(), False)

    def send(self, data: memoryview, seconds: float) -> int:
        """Wait until the pipe has room and write what fits; return how many bytes, which may be none."""
        pipe = self._pipe("stdin")
        _wait(pipe, seconds, writing=True)
        with suppress(BlockingIOError):  # the pipe has some space, but too little
            return os.write(pipe.fileno(), data[:_CHUNK])
        return 0

    def end_input(self) -> None:
        """Close the process's standard input."""
        self._pipe("stdin").close()

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived of the process's output; nothing at its end."""
        return self._read("stdout", seconds)

    def receive_errors(self, seconds: float) -> bytes:
        """Return what has arrived of the process's error output; nothing at its end."""
        return self._read("stderr", seconds)

    def exit_code(self, seconds: float) -> int:
        """Wait for the process to end; ConnectionBroke if a signal ended it."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if code < 0:
            raise ConnectionBroke
        return code

    def kill(self) -> None:
        """End the process without waiting until it has ended."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait until it has ended, and close its pipes."""
        self.kill()
        self._process.wait()
        for name in ("stdin", "stdout", "stderr"):
            with suppress(OSError):
                self._pipe(name).close()

    def _read(self, name: str, seconds: float) -> bytes:
        pipe = self._pipe(name)
        _wait(pipe, seconds, writing=False)
        return os.read(pipe.fileno(), _CHUNK)

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self._process, name)
        return pipe


def _wait(pipe: IO[bytes], seconds: float, *, writing: bool) -> None:
    """Wait until a pipe can be used, or its other end is closed."""
    if sys.platform == "win32":
        raise NotImplementedError("Windows cannot wait for pipes")
    poll = select.poll()
    poll.register(pipe, select.POLLOUT if writing else select.POLLIN)
    if not poll.poll(seconds * 1000):
        raise TimeoutError

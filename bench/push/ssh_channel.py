"""What goes into a channel of SSH's and what comes out of it, whatever the login shell there is."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from bench.base.errors import EnvironmentCannot

_LARGEST_BYTES = 2**20  # of a greeting


class AnsweringAgent:
    """What a script says, without what login shells say before it: greetings, quotas.

    The script itself comes on its standard input: of what stands on a command line no two shells think the
    same, and csh takes neither a new line nor an exclamation mark between quotes.
    """

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self.mark = f"bench-{secrets.token_hex(8)}"
        self.before = b""
        self.begun = False

    def ask(self, script: str) -> tuple[str, bytes]:
        """The command, and what it reads first. Of a script that a broken line cut short, nothing is run."""
        said = f"{script}\n#{self.mark}".encode()
        whole = f'case $s in *"#{self.mark}") eval "$s";; *) exit 255;; esac'
        return f"exec sh -c 'printf %s {self.mark}; s=$(head -c {len(said)}); {whole}'", said

    def take(self, data: bytes) -> None:
        if self.begun:
            self._take(data)
            return
        self.before, found, after = (self.before + data).partition(self.mark.encode())
        self.begun = bool(found)
        if after:
            self._take(after)
        if len(self.before) > _LARGEST_BYTES:
            raise EnvironmentCannot("its login shell talks without end")


def send(channel: Any, pieces: Iterable[bytes]) -> None:
    """All of it; what reads there takes the end of it for the end of the file, whatever the reason was."""
    for piece in _readable(pieces):
        try:
            channel.sendall(piece)
        except TimeoutError:
            raise
        except OSError:  # it ended before it had read all: its exit code says why
            break
    with suppress(OSError):
        channel.shutdown_write()


def _readable(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A file of this machine's that fails is no fault of the node's."""
    try:
        yield from pieces
    except OSError as error:
        what = f"cannot be read here: {error.strerror}"
        raise EnvironmentCannot(what, where=error.filename and str(error.filename)) from None

"""Run commands of bench on a real pseudo-terminal of a given width, in a fork of the test's process."""

from __future__ import annotations

import os
import pty
import re
import sys
import termios
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.cli.main import main

# Variables by which the terminal of the person who runs the tests could change results.
FREE_OF = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "PAGER", "BENCH_PAGER", "LESS")
CRASHED = 99


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of a command on the terminal, and its exit code; negative: the signal that ended it."""

    text: str
    code: int

    @property
    def lines(self) -> list[str]:
        """The lines as they are seen: without the codes of colours."""
        return re.sub(r"\x1b\[\d*m", "", self.text).splitlines()

    @property
    def widest(self) -> int:
        return max(map(len, self.lines), default=0)


def on_terminal(
    command: Sequence[str] | Callable[[], int],
    columns: int,
    environment: Mapping[str, str] = MappingProxyType({"BENCH_PAGER": ""}),
    typed: Sequence[tuple[str, str]] = (),
) -> Shown:
    """Run words of `bench`, or a function, with stdin, stdout and stderr on a terminal of this width.

    `typed` are the keys that a person presses, each with the text for which they wait before they do.
    """
    child, terminal = pty.fork()
    if child == 0:
        _become(command, columns, environment)
    written, seen, keys = b"", 0, list(typed)
    while piece := _read(terminal):
        written += piece
        while keys and (at := written.find(keys[0][0].encode(), seen)) >= 0:
            seen = at + len(keys[0][0].encode())
            os.write(terminal, keys.pop(0)[1].encode())
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = written.decode().replace("\r\n", "\n")
    assert code != CRASHED, text
    return Shown(text, code)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # a terminal whose last process has ended
        return b""


def _become(command: Sequence[str] | Callable[[], int], columns: int, environment: Mapping[str, str]) -> None:
    code = CRASHED
    try:
        termios.tcsetwinsize(1, (24, columns))
        for name in FREE_OF:
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm-256color", **environment}
        spelled = os.environ.pop("SPELLED_IN", "utf-8")  # the encoding of the terminal's locale
        sys.stdin = open(0, encoding=spelled)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding=spelled)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding=spelled)  # noqa: SIM115
        code = command() if callable(command) else main(command)
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else CRASHED
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

"""End a process of ssh that shares its connection, by the messages of OpenSSH's PROTOCOL.mux.

`ssh -O exit` does this too, but a hundred such processes would take seconds after Ctrl-C, at once or one by
one.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_HELLO, _VERSION, _TERMINATE = 0x00000001, 4, 0x10000005
_MOST_BYTES = 4096  # of the answers


def ask_to_end(paths: Sequence[Path], seconds: float = 2.0) -> list[bool]:
    """Ask the processes behind control sockets to end, all at once; return whether each has ended in time."""
    if sys.platform == "win32":
        raise NotImplementedError("Windows' ssh shares no connections")
    asked = [_asked(path, seconds) for path in paths]
    deadline = time.monotonic() + seconds
    try:
        return [control is not None and _has_ended(control, deadline) for control in asked]
    finally:
        for control in asked:
            if control is not None:
                control.close()


def _asked(path: Path, seconds: float) -> socket.socket | None:
    """Send the request to end; None if nobody listens."""
    if sys.platform == "win32":
        raise NotImplementedError("Windows' ssh shares no connections")
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.settimeout(seconds)
        control.connect(str(path))
        control.sendall(_message(_HELLO, _VERSION) + _message(_TERMINATE, 0))
    except OSError:
        control.close()
        return None
    return control


def _has_ended(control: socket.socket, deadline: float) -> bool:
    """Read until the process closes its socket; False if it sends anything that ssh would not send.

    A process usually ends without sending an answer.
    """
    answer = b""
    try:
        while len(answer) < _MOST_BYTES:
            control.settimeout(max(0.001, deadline - time.monotonic()))
            if not (part := control.recv(_MOST_BYTES)):
                break
            answer += part
    except OSError:
        return False
    return len(answer) < _MOST_BYTES and answer[4:12] == struct.pack(">II", _HELLO, _VERSION)


def _message(*words: int) -> bytes:
    return struct.pack(f">{1 + len(words)}I", 4 * len(words), *words)

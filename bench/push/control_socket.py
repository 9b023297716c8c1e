"""End a process of ssh that shares its connection, by the messages of OpenSSH's PROTOCOL.mux.

`ssh -O exit` does the same in a process of its own. For the connections of a hundred nodes, these processes
would take seconds after Ctrl-C.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

_HELLO, _VERSION, _TERMINATE = 0x00000001, 4, 0x10000005
_SECONDS = 2.0  # for an answer
_MOST_BYTES = 4096  # of an answer


def ask_to_end(path: Path) -> bool:
    """Ask the process behind a control socket to end; return whether it has ended."""
    if sys.platform == "win32":
        raise NotImplementedError("Windows' ssh shares no connections")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(_SECONDS)
            control.connect(str(path))
            control.sendall(_message(_HELLO, _VERSION) + _message(_TERMINATE, 0))
            hello = struct.unpack_from(">II", _answer(control))
            # The process usually ends before its agreement is on its way; its end closes the socket.
            while control.recv(_MOST_BYTES):
                pass
    except (OSError, struct.error):
        return False
    return hello == (_HELLO, _VERSION)


def _message(*words: int) -> bytes:
    return struct.pack(f">{1 + len(words)}I", 4 * len(words), *words)


def _answer(control: socket.socket) -> bytes:
    """Read one message; OSError if it does not come, or if it is larger than any that was asked for."""
    (size,) = struct.unpack(">I", _exactly(control, 4))
    if size > _MOST_BYTES:
        raise OSError("not an answer of ssh")
    return _exactly(control, size)


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            raise OSError("the process has ended")
        data += part
    return data

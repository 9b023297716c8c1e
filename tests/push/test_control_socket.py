"""The end of a shared connection of ssh, by a process that speaks, or does not speak, its protocol."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.push.control_socket import ask_to_end

HELLO = struct.pack(">III", 8, 1, 4)
WITH_EXTENSION = struct.pack(">III", 16, 1, 4) + b"\0\0\0\x04info"
AGREES = struct.pack(">III", 8, 0x80000001, 0)


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Answer one caller of a control socket, then close it; the list gets the caller's message."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                asked.append(caller.recv(4096))
                caller.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(60)


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (HELLO, True),
        (WITH_EXTENSION + AGREES, True),
        (struct.pack(">III", 8, 1, 5), False),
        (struct.pack(">I", 2**31) + b"x", False),
        (struct.pack(">II", 4, 1), False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"", False),
    ],
    ids=["ends at once", "agrees", "another version", "endless", "short", "no control socket", "silent"],
)
def test_a_process_that_speaks_the_protocol_has_ended(tmp_path: Path, answer: bytes, *, ended: bool) -> None:
    with answering(tmp_path / "s", answer) as asked:
        assert ask_to_end([tmp_path / "s"]) == [ended]
    assert asked == [struct.pack(">III", 8, 1, 4) + struct.pack(">III", 8, 0x10000005, 0)]


def test_a_socket_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert ask_to_end([tmp_path / "s"]) == [False]


def test_several_are_asked_at_once_and_a_silent_one_holds_up_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent, answering(tmp_path / "b", HELLO):
        silent.bind(str(tmp_path / "a"))
        silent.listen()
        paths = [tmp_path / name for name in ("a", "b", "gone")]
        assert ask_to_end(paths, 0.5) == [False, True, False]

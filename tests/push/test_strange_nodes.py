"""`bench push` to nodes that answer a byte a second, or not at all: Ctrl-C ends it, and time is bounded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.push.all_hosts import STOP_SECONDS, PushTask, run_all
from bench.push.connection import Unreachable
from bench.push.hosts import Host
from bench.push.push_to_node import NodePush
from bench.push.remote import Remote
from bench.push.request import Result
from tests.push.strange_nodes import FORBIDDEN, mark_of, ssh_server, wait_until_closed
from tests.push.test_push_to_node import QUICKSTART

ROOT = Path(bench.__file__).parents[1]
# Only a push that hangs takes so long to end: on a busy machine, Python alone may take seconds for that.
HANGS_SECONDS = 20.0
# A shell starts programs in the background with SIGINT ignored, which is inherited.
_BENCH = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from bench.cli.main import main; sys.exit(main())"
)


def drip(channel: Any, command: bytes) -> None:
    """Send the mark and then a byte a second, like a node that is never silent."""
    with suppress(OSError, EOFError):
        channel.sendall(mark_of(command))
        while True:
            channel.sendall(b"x")
            time.sleep(1.0)


def no_exit_code(channel: Any, command: bytes) -> None:
    """End the output without telling the exit code, and leave the channel open."""
    channel.sendall(mark_of(command) + b"done")
    channel.shutdown_write()
    wait_until_closed(channel)


def reads_nothing(channel: Any, command: bytes) -> None:
    wait_until_closed(channel)


@contextmanager
def pushing(home: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run `bench push --dry-run` to a port of this machine; end it with the block."""
    own = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "STATE", "CACHE")}
    words = ["push", str(QUICKSTART), f"me@127.0.0.1:{port}", "--engine", "none", "--new", "--dry-run"]
    process = subprocess.Popen(
        [sys.executable, "-c", _BENCH, *words, "--ssh-config", str(home / ".ssh/config")],
        env=os.environ | own | {"HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("serve", "opens", "accepts"),
    [(drip, True, True), (drip, False, True), (drip, True, False)],
    ids=["a byte a second", "opens no channel", "accepts no command"],
)
def test_one_interrupt_ends_a_push(tmp_path: Path, serve: Any, opens: bool, accepts: bool) -> None:
    with ExitStack() as stack:
        port, asked = stack.enter_context(ssh_server(tmp_path, serve, opens=opens, accepts=accepts))
        process = stack.enter_context(pushing(tmp_path, port))
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 5
    assert "interrupted" in out + err


def test_the_threads_of_an_interrupted_push_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never heeds the stop costs a second, and its host counts as interrupted."""
    never, stop = threading.Event(), threading.Event()

    class Push:
        def interrupt(self) -> Result:
            return Result("left behind")

    def interrupted(_futures: object) -> None:
        raise KeyboardInterrupt

    def wait(_futures: object, timeout: float) -> None:
        assert timeout == STOP_SECONDS <= 1.0
        ended.wait(HANGS_SECONDS)

    ended = threading.Event()

    def ends() -> Result:
        stop.wait(HANGS_SECONDS)
        ended.set()
        return Result("ended")

    def hangs() -> Result:
        never.wait(HANGS_SECONDS)
        return Result("hung")

    monkeypatch.setattr("bench.push.all_hosts.wait_for_all", interrupted)
    monkeypatch.setattr("bench.push.all_hosts.wait", wait)
    push: NodePush = Push()  # type: ignore[assignment]
    results = run_all([PushTask(push, hangs), PushTask(push, ends)], 2, stop)
    never.set()
    assert results[0].host == "left behind"


@pytest.mark.parametrize(
    ("serve", "opens", "accepts"),
    [(drip, True, True), (no_exit_code, True, True), (reads_nothing, True, True), (drip, True, False)],
    ids=["a byte a second", "no exit code", "reads nothing", "accepts no command"],
)
def test_a_question_to_such_a_node_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any, opens: bool, accepts: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with ssh_server(tmp_path, serve, opens=opens, accepts=accepts) as (port, _):
        host = Host("n", "127.0.0.1", "me", port)
        node = Remote(host, tmp_path / ".ssh/config")
        sent = [bytes(2**20)] * (16 if serve is reads_nothing else 0)
        with pytest.raises(Unreachable):
            node.ask("cat >file", sent, seconds=1.5)
        node.close()


def test_what_a_machine_says_before_it_speaks_ssh_is_not_printed(tmp_path: Path) -> None:
    """Anybody on the way can send these texts: no host key is known yet."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").touch()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listener.accept()
                    connected.sendall(b"\x1b]0;owned\x07\nSSH-\x1b]0;owned\x07-x\n")

        threading.Thread(target=answer, daemon=True).start()
        with pushing(tmp_path, listener.getsockname()[1]) as process:
            out, err = process.communicate(timeout=60)
        listener.shutdown(socket.SHUT_RDWR)
    assert "no SSH session: " in err
    assert not FORBIDDEN.search(out + err) and "Traceback" not in err

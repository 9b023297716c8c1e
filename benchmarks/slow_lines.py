"""A node behind a slow line, for benchmarks of pushing. Needs root and tc.

The node is a network namespace with two lines: one to the operator, 20 Mbit/s up and 100 Mbit/s down, 40 ms
there and back, and one of 1 Gbit/s to a package index and a Debian mirror on this machine. tc limits the
rates. A proxy makes the delay, since many kernels lack netem.
"""

from __future__ import annotations

import queue
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.nodes import Nodes, _sshd_config, free_port
from tests.e2e.services import require

NAMESPACE = "bench-node"
OPERATOR_LINE = ("10.77.0.1", "10.77.0.2", "20mbit", "100mbit")  # this end, the node's end, up, down
INDEX_LINE = ("10.78.0.1", "10.78.0.2", "1gbit", "1gbit")
LINES = {"bench-op": OPERATOR_LINE, "bench-ix": INDEX_LINE}  # by the beginning of the names of their ends
DELAY_SECONDS = 0.02  # in each direction


def run(*words: object) -> None:
    """Run a command that must succeed; words may be paths or numbers."""
    subprocess.run([str(word) for word in words], check=True)


@contextmanager
def namespace() -> Iterator[None]:
    """Make the node's network namespace and its two lines."""
    run("ip", "netns", "add", NAMESPACE)
    try:
        within = ("ip", "-n", NAMESPACE)
        run(*within, "link", "set", "lo", "up")
        for name, (near, far, up, down) in LINES.items():
            ends = f"{name}0", f"{name}1"
            run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", NAMESPACE)
            run("ip", "addr", "add", f"{near}/24", "dev", ends[0])
            run(*within, "addr", "add", f"{far}/24", "dev", ends[1])
            run("ip", "link", "set", ends[0], "up")
            run(*within, "link", "set", ends[1], "up")
            bucket = ("burst", "256k", "latency", "100ms")
            run("tc", "qdisc", "add", "dev", ends[0], "root", "tbf", "rate", up, *bucket)
            run("tc", "-n", NAMESPACE, "qdisc", "add", "dev", ends[1], "root", "tbf", "rate", down, *bucket)
        yield
    finally:
        # The kernel removes a namespace's lines some time later; their names must be free for the next user.
        for name in LINES:
            subprocess.run(["ip", "link", "del", f"{name}0"], check=False, stderr=subprocess.DEVNULL)
        run("ip", "netns", "del", NAMESPACE)


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of a folder that prints nothing, and continues downloads as package indexes do."""

    def do_GET(self) -> None:
        """Serve a file, or its rest from a byte on, as one asks who goes on with a download."""
        path = Path(self.translate_path(self.path))
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start is None or not path.is_file() or int(start[1]) >= path.stat().st_size:
            super().do_GET()
            return
        begin, size = int(start[1]), path.stat().st_size
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - begin))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(begin)
            self.copyfile(file, self.wfile)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file; the reader may go away in the middle of it."""
        with suppress(OSError):  # a download may end in the middle of a file
            super().copyfile(source, outputfile)


@contextmanager
def served(folder: Path, address: str = INDEX_LINE[0]) -> Iterator[str]:
    """Serve a folder, which is an index or a mirror, on an address: by default that of their line."""
    server = ThreadingHTTPServer((address, 0), partial(QuietHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on, each after the delay, in a thread that sends them."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(maxsize=64)

    def deliver() -> None:
        with suppress(OSError):
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(2**15)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + DELAY_SECONDS, data))


@contextmanager
def delaying(target: tuple[str, int]) -> Iterator[int]:
    """Yield a port of this machine that leads to `target`, with a delay that costs no throughput."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(target)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@contextmanager
def node(folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[Nodes, int]]:
    """Start sshd in the namespace; yield the node, and a port of this machine that leads to it.

    Commands on the node have `environment` too.
    """
    require("sshd", "ssh-keygen")
    Path("/run/sshd").mkdir(exist_ok=True)
    home, address, port = folder / "home", OPERATOR_LINE[1], free_port()
    home.mkdir(parents=True)
    for name in ("host", "id"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    shutil.copy(folder / "id.pub", folder / "authorized")
    own = {**environment, "PIP_CONFIG_FILE": "/dev/null"}
    config = _sshd_config(folder, port, {address: home}, own, {}, ())
    (folder / "sshd_config").write_text(config)
    command = ["ip", "netns", "exec", NAMESPACE, "/usr/sbin/sshd", "-D", "-e", "-f", f"{folder}/sshd_config"]
    daemon = subprocess.Popen(command)
    try:
        time.sleep(1)
        with delaying((address, port)) as near:
            key = " ".join((folder / "host.pub").read_text().split()[:2])
            (folder / "known").write_text(f"[127.0.0.1]:{near} {key}\n")
            (folder / "ssh_config").write_text(
                f"Host *\n  User root\n  IdentityFile {folder}/id\n  UserKnownHostsFile {folder}/known\n"
            )
            yield Nodes(folder, port, [daemon.pid], {address: home}), near
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)

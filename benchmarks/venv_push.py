"""Measure a push to a node without a container engine, over a slow uplink. Needs root and tc.

python benchmarks/venv_push.py [INDEX|SEND ...]

The node is a network namespace with two lines: 20 Mbit/s from the operator, 100 Mbit/s back and 40 ms there
and back, and 1 Gbit/s to a package index on this machine. tc limits the rates; a proxy makes the delay, since
many kernels lack netem. INDEX: the index has every wheel of the CPU's lock. SEND: it lacks torch, as PyPI
does. Each way begins with an empty node, and pushes a second time to the node that is full.

Prints seconds from the start of `bench push` to the installed environment and to the first measured trial,
the bytes on the operator's line until then, and both times as ratios to an empty Python of this machine.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.images.fetch import wheels
from bench.images.locks import read_pins
from tests.e2e.nodes import Nodes, _sshd_config, free_port
from tests.e2e.pushing import ROOT, Operator
from tests.e2e.services import require
from tests.environment.made_wheels import make_index

NAMESPACE = "bench-venv"
OPERATOR_LINE = ("10.87.0.1", "10.87.0.2", "20mbit", "100mbit")  # this end, the node's end, up, down
INDEX_LINE = ("10.88.0.1", "10.88.0.2", "1gbit", "1gbit")
DELAY_SECONDS = 0.02  # in each direction
CACHE = Path.home() / ".cache/bench/images/wheels"


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@contextmanager
def namespace() -> Iterator[None]:
    """Make the node's network namespace and its two lines."""
    run("ip", "netns", "add", NAMESPACE)
    try:
        within = ("ip", "-n", NAMESPACE)
        run(*within, "link", "set", "lo", "up")
        for name, (near, far, up, down) in {"vo": OPERATOR_LINE, "vx": INDEX_LINE}.items():
            ends = f"bench-{name}0", f"bench-{name}1"
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
        run("ip", "netns", "del", NAMESPACE)


def line_bytes() -> int:
    """Return the bytes that the operator's line has carried, in both directions, with all headers."""
    folder = Path("/sys/class/net/bench-vo0/statistics")
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(OSError):  # the node measures the line, and then closes the connection
            super().copyfile(source, outputfile)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the index on its line."""
    server = ThreadingHTTPServer((INDEX_LINE[0], 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{INDEX_LINE[0]}:{server.server_port}/simple"
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
def node(folder: Path) -> Iterator[tuple[Nodes, int]]:
    """Start sshd in the namespace; yield the node, and a port of this machine that leads to it."""
    require("sshd", "ssh-keygen")
    Path("/run/sshd").mkdir(exist_ok=True)
    home, address, port = folder / "home", OPERATOR_LINE[1], free_port()
    home.mkdir(parents=True)
    for name in ("host", "id"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    shutil.copy(folder / "id.pub", folder / "authorized")
    config = _sshd_config(folder, port, {address: home}, {"PIP_CONFIG_FILE": "/dev/null"}, {})
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


@dataclass(frozen=True)
class Pushed:
    """When a push had the environment on the node, and its first trial measured."""

    installed_seconds: float
    first_trial_seconds: float
    line_megabytes: float
    said: tuple[str, ...]


def pushed(operator: Operator, port: int, index: str) -> Pushed:
    """Push a run, watch its output for the two moments, and wait for its end."""
    words = [
        "push",
        operator.manifest(),
        f"127.0.0.1:{port}",
        "--engine",
        "venv",
        "--device",
        "cpu",
        "--keep",
    ]
    words += ["--new", "--index", index, "--ssh-config", operator.nodes.ssh_config]
    before, began, seconds, said = line_bytes(), time.monotonic(), {}, []
    process = subprocess.Popen(
        operator.command(*words), cwd=operator.folder, env=operator.environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    carried = 0
    for line in process.stderr:
        said.append(line.rstrip())
        if line.startswith("run ") and "installed" not in seconds:
            seconds["installed"], carried = time.monotonic() - began, line_bytes() - before
        if " s/step " in line and "first" not in seconds:
            seconds["first"] = time.monotonic() - began
    if process.wait() or len(seconds) < 2:
        raise SystemExit("\n".join(said))
    sentences = tuple(line for line in said if "wheels" in line)
    return Pushed(
        round(seconds["installed"], 1), round(seconds["first"], 1), round(carried / 1e6, 1), sentences
    )


def one_way(way: str, folder: Path) -> dict[str, Any]:
    """Push twice to an empty node."""
    found = wheels(read_pins(ROOT / "docker/cpu.lock").values(), CACHE, "3.11")
    lacking = ("torch",) if way == "SEND" else ()
    index = make_index(folder / "index", *(path for name, path in found.items() if name not in lacking))
    cache = folder / "cache/bench/images"
    cache.mkdir(parents=True)
    (cache / "wheels").symlink_to(CACHE)  # the operator has the wheels, as after `bench image build`
    with served(index) as url, node(folder / "node") as (nodes, port):
        operator = Operator(folder, nodes)
        first, second = (pushed(operator, port, url) for _ in range(2))
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", ""], check=True)
        python = time.monotonic() - began
    return {
        "first": vars(first),
        "second": vars(second),
        "first_over_an_empty_python": round(first.first_trial_seconds / python),
        "second_over_an_empty_python": round(second.installed_seconds / python),
    }


def main() -> None:
    ways = sys.argv[1:] or ["INDEX", "SEND"]
    with ExitStack() as stack:
        stack.enter_context(namespace())
        found = {}
        for way in ways:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-venv-")))
            found[way] = one_way(way, folder)
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], **found}, indent=1))


if __name__ == "__main__":
    main()

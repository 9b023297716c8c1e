"""Compare sending the CPU image with letting the node assemble it, over a slow uplink. Needs root and tc.

python benchmarks/assembled_push.py IMAGE WHEELS [SEND|INDEX|ALL ...]

IMAGE is an archive of `bench image build`, WHEELS a folder below which its wheels are. The node is a network
namespace with two lines: one to the operator, 20 Mbit/s up and 100 Mbit/s down, 40 ms there and back, and one
of 1 Gbit/s to a package index and a Debian mirror on this machine. tc limits the rates. A proxy makes the
delay, since many kernels lack netem. Each way starts with an empty engine and an empty cache of the operator.

SEND sends all layers, INDEX lets the node download wheels, ALL also Debian packages.
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
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.images.archive import extract, facts_of
from bench.images.download import Downloads, PackageFile, configured
from bench.images.fetch import DEFAULT_INDEX, digest
from bench.images.package_list import LIST, read_list
from tests.e2e.nodes import Nodes, _sshd_config, free_port
from tests.e2e.pushing import WithImage
from tests.e2e.services import docker_engine, require

NAMESPACE = "bench-node"
OPERATOR_LINE = ("10.77.0.1", "10.77.0.2", "20mbit", "100mbit")  # this end, the node's end, up, down
INDEX_LINE = ("10.78.0.1", "10.78.0.2", "1gbit", "1gbit")
DELAY_SECONDS = 0.02  # in each direction


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@contextmanager
def namespace() -> Iterator[None]:
    """Make the node's network namespace and its two lines."""
    run("ip", "netns", "add", NAMESPACE)
    try:
        within = ("ip", "-n", NAMESPACE)
        run(*within, "link", "set", "lo", "up")
        for name, (near, far, up, down) in {"op": OPERATOR_LINE, "ix": INDEX_LINE}.items():
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
    folder = Path("/sys/class/net/bench-op0/statistics")
    return sum(int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(OSError):  # a round of downloads ends in the middle of a file
            super().copyfile(source, outputfile)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the index and the mirror on their line."""
    server = ThreadingHTTPServer((INDEX_LINE[0], 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{INDEX_LINE[0]}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def publish(image: Path, wheels: Path, folder: Path) -> None:
    """Lay out an index of the image's wheels, and a mirror of its Debian packages from apt's mirrors."""
    files = read_list(extract(image, facts_of(image), LIST))
    by_digest = {digest(path): path for path in wheels.rglob("*.whl")}
    debs = [file for file in files if not file.is_wheel]
    (folder / "packages").mkdir(parents=True)
    downloads = Downloads(configured(os.environ, DEFAULT_INDEX), str(Path.home()))
    nowhere = downloads.fetch_all(debs, folder / "packages", 600)
    print(f"{len(debs) - len(nowhere)} of {len(debs)} Debian packages are on apt's mirrors", file=sys.stderr)
    for file in files:
        _publish(file, by_digest.get(file.sha256) or folder / "packages" / file.sha256, folder)


def _publish(file: PackageFile, source: Path, folder: Path) -> None:
    if not source.exists():
        return
    path = folder / ("simple" if file.is_wheel else "debian/pool/main")
    path = path / file.project / file.name if file.is_wheel else path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)
    if file.is_wheel:
        link = f'<a href="{file.name.replace("+", "%2B")}#sha256={file.sha256}">{file.name}</a>'
        (path.parent / "index.html").write_text(link)


@contextmanager
def delaying(target: tuple[str, int]) -> Iterator[int]:
    """Yield a port of this machine that leads to `target`, with a delay that costs no throughput."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(maxsize=64)
        threading.Thread(target=deliver, args=(pieces, sink), daemon=True).start()
        data = b"-"
        while data:
            try:
                data = source.recv(2**15)
            except OSError:
                data = b""
            pieces.put((time.monotonic() + DELAY_SECONDS, data))

    def deliver(pieces: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        with suppress(OSError):
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(target)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@contextmanager
def node(folder: Path, engine: str) -> Iterator[tuple[Nodes, int]]:
    """Start sshd in the namespace; yield the node, and a port of this machine that leads to it."""
    require("sshd", "ssh-keygen")
    Path("/run/sshd").mkdir(exist_ok=True)
    home, address, port = folder / "home", OPERATOR_LINE[1], free_port()
    home.mkdir()
    for name in ("host", "id"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    shutil.copy(folder / "id.pub", folder / "authorized")
    environment = {"DOCKER_HOST": engine, "PIP_CONFIG_FILE": "/dev/null"}
    (folder / "sshd_config").write_text(_sshd_config(folder, port, {address: home}, environment, {}))
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


def measured(operator: WithImage, image: Path, port: int, *words: str) -> dict[str, Any]:
    """Push a run to the empty node; return when the image was loaded and the first trial measured."""
    for name in ("results", "cache", "state"):
        shutil.rmtree(operator.folder / name, ignore_errors=True)
    options = [operator.manifest(), f"127.0.0.1:{port}", "--image", image, "--engine", "docker", "--device"]
    options += ["cpu", "--ssh-config", operator.nodes.ssh_config, *words]
    before, began, seconds = line_bytes(), time.monotonic(), {}
    push = subprocess.Popen(
        operator.command("push", *options),
        cwd=operator.folder,
        env=operator.environment(),
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert push.stderr is not None
    for line in push.stderr:
        print(f"{time.monotonic() - began:6.0f} s  {line}", end="", file=sys.stderr)
        if "sent, verified" in line:
            seconds["loaded"] = round(time.monotonic() - began, 1)
            moved = line_bytes() - before
        if "trial" not in seconds and operator.mirrored():
            seconds["trial"] = round(time.monotonic() - began, 1)
    assert push.wait() == 0
    return {"seconds_to_loaded_image": seconds["loaded"], "seconds_to_first_trial": seconds["trial"],
            "bytes_on_the_operators_line": moved}  # fmt: skip


def main(image: str, wheels: str, *chosen: str) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-assembled-")))
        publish(Path(image), Path(wheels), folder / "web")
        stack.enter_context(namespace())
        url = stack.enter_context(served(folder / "web"))
        for name in ("docker", "node"):
            (folder / name).mkdir()
        engine = stack.enter_context(docker_engine(folder / "docker"))
        nodes, port = stack.enter_context(node(folder / "node", engine))
        operator = WithImage(folder, nodes, docker=(engine,))
        index = ("--index", f"{url}/simple")
        ways = {
            "SEND": ("--no-assemble",),
            "INDEX": (*index, "--mirror", f"{url}/nothing"),
            "ALL": (*index, "--mirror", f"{url}/debian"),
        }
        found = {
            name: measured(operator, Path(image).absolute(), port, *ways[name]) for name in chosen or ways
        }
    for name in found.keys() - {"SEND"}:
        if "SEND" in found:
            for key, value in found["SEND"].items():
                found[name][f"{key}_over_sending"] = round(found[name][key] / value, 3)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])

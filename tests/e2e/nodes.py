"""Nodes for end-to-end tests: a real sshd on loopback addresses, and a proxy that counts or cuts traffic."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.conftest import shared_folder
from tests.e2e.services import ONE_THREAD, SYSTEM, accepts, require, require_root
from tests.patience import PATIENCE_SECONDS, until

_MOST_ADDRESSES = 16  # per sshd


@dataclass(frozen=True)
class Nodes:
    """Nodes at addresses from 127.77.0.1 up, on one port; each has its own home, and so its own place."""

    folder: Path
    port: int
    daemons: Sequence[int]  # process ids of sshd
    homes: Mapping[str, Path]

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def addresses(self) -> list[str]:
        return list(self.homes)

    def sessions(self) -> list[int]:
        """Return the processes of sshd that serve a connection."""
        tasks = [Path(f"/proc/{pid}/task/{pid}/children") for pid in self.daemons]
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def cut(self) -> int:
        """End every connection, as a dead network would; return how many there were."""
        found = self.sessions()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def left(self, address: str) -> list[str]:
        """List the files in a node's home."""
        return sorted(str(path.relative_to(self.homes[address])) for path in self.homes[address].rglob("*"))


@contextmanager
def ssh_nodes(
    folder: Path,
    count: int = 2,
    environment: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
    options: Callable[[Path, int], Sequence[str]] = lambda folder, port: (),
) -> Iterator[Nodes]:
    """Start nodes. `environment` is for all of them, `own` for single ones, keyed by number from 0.

    `options` is called with the folder of their keys and the port; it returns more lines for sshd.
    """
    require_root("an sshd of our own")
    require("sshd", "ssh-keygen")
    Path("/run/sshd").mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host", "id"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True)
    (folder / "authorized").write_text((folder / "id.pub").read_text())
    port = free_port()
    lines = options(folder, port)
    homes = {f"127.77.0.{number + 1}": folder / f"home{number + 1}" for number in range(count)}
    for home in homes.values():
        home.mkdir()
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text("".join(f"[{address}]:{port} {key}\n" for address in homes))
    (folder / "ssh_config").write_text(
        f"Host *\n  Port {port}\n  User root\n  IdentityFile {folder}/id\n"
        f"  UserKnownHostsFile {folder}/known\n"
    )
    with ExitStack() as stack:
        some = list(homes.items())
        parts = [dict(some[at : at + _MOST_ADDRESSES]) for at in range(0, count, _MOST_ADDRESSES)]
        daemons = [
            stack.enter_context(
                _sshd(folder, number, _sshd_config(folder, port, part, environment or {}, own or {}, lines))
            )
            for number, part in enumerate(parts)
        ]
        for number, (part, daemon) in enumerate(zip(parts, daemons, strict=True)):
            for address in part:
                until(partial(accepts, address, port, daemon, folder / f"sshd{number}.log"), "sshd")
        yield Nodes(folder, port, [daemon.pid for daemon in daemons], homes)


@contextmanager
def _sshd(folder: Path, number: int, config: str) -> Iterator[subprocess.Popen[bytes]]:
    path = folder / f"sshd_config{number}"
    path.write_text(config)
    with (folder / f"sshd{number}.log").open("wb") as log:
        daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(path)], stderr=log)
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)


def _sshd_config(
    folder: Path,
    port: int,
    homes: Mapping[str, Path],
    environment: Mapping[str, str],
    own: Mapping[int, Mapping[str, str]],
    options: Sequence[str],
) -> str:
    lines = [f"ListenAddress {address}:{port}" for address in homes]
    lines += [
        f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized", "PidFile none", "UsePAM no",
        "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password",
        "StrictModes no", "MaxStartups 500", "MaxSessions 50", "AllowTcpForwarding yes", "LogLevel ERROR",
    ]  # fmt: skip
    lines += options
    for address, home in homes.items():
        number = int(address.rpartition(".")[2]) - 1
        values = {"HOME": str(home), "PATH": SYSTEM, **ONE_THREAD, **environment, **own.get(number, {})}
        lines.append(f"Match LocalAddress {address}")
        lines.append("  SetEnv " + " ".join(f'"{name}={value}"' for name, value in values.items()))
    return "\n".join([*lines, ""])


def free_port() -> int:
    """Return a port that nobody listens at, for a program that is started later.

    No other test of the session gets it, and the kernel gives it to no connection meanwhile: it is below the
    ports that the kernel chooses from.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = shared_folder() / "ports"
    taken.mkdir(exist_ok=True)
    while True:
        port = random.randrange(first - 10_000, first)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("", port))
            (taken / str(port)).touch(exist_ok=False)
            return port


@dataclass
class Wire:
    """A proxy in front of a node that counts every byte in both directions, including encryption."""

    address: str
    target: tuple[str, int]
    port: int
    count: int = 0
    cut_at: int | None = None  # number of bytes after which the connection is cut once
    bytes_per_second: float | None = None  # of each direction
    _listener: socket.socket = field(default_factory=socket.socket, repr=False)

    def pump(self, source: socket.socket, sink: socket.socket, pair: Sequence[socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.count += len(data)
                if self.cut_at is not None and self.count >= self.cut_at:
                    self.cut_at = None
                    break
                if self.bytes_per_second is not None:
                    time.sleep(len(data) / self.bytes_per_second)
                sink.sendall(data)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self.target)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(source, sink, (near, far)), daemon=True).start()


@contextmanager
def wire(nodes: Nodes, address: str) -> Iterator[Wire]:
    """Open a port of this machine that leads to a node, and add it to known_hosts."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    key = " ".join((nodes.folder / "host.pub").read_text().split()[:2])
    with (nodes.folder / "known").open("a") as known:
        known.write(f"[127.0.0.1]:{port} {key}\n")
    made = Wire("127.0.0.1", (address, nodes.port), port, _listener=listener)
    threading.Thread(target=made.serve, daemon=True).start()
    try:
        yield made
    finally:
        listener.close()

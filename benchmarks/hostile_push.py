"""Push to five honest nodes, alone and beside five hostile ones. Needs root: it starts an sshd.

    PYTHONPATH=. python benchmarks/hostile_push.py

Hostile nodes are SSH servers that let everybody in and then behave in ten ways, five in each round. A process
of the lowest priority serves them, since nodes elsewhere would take no processor time from the honest ones.
Prints the time until the last honest bundle is fetched, as a ratio to the time alone, and how long the push
still lasts after Ctrl-C; the same of the processor time of the push, without and with the processes of ssh
that it has started and that have ended. The median of the ratios is that of all rounds, which begin in turn
with the push alone and with the hostile nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.e2e.nodes import Nodes, ssh_nodes
from tests.e2e.pushing import Operator
from tests.push.strange_nodes import mark_of, ssh_server

HONEST, ROUNDS = 5, 6
MOST_SECONDS = 180.0
Serve = Callable[[Any, bytes], None]


def _drip(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command))
    while True:
        channel.sendall(b"x")
        time.sleep(1)


def _marks(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command) + b"\x1e" * 4_000_000)
    _end(channel)


def _letters(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command) + b"\x1ememory\x1f" + b"a" * 4_000_000 + b"\x1f0\x1e")
    _end(channel)


def _endless(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command))
    while True:
        channel.sendall(b"y" * 65536)


def _errors(channel: Any, _: bytes) -> None:
    while True:
        channel.sendall_stderr(b"\x1b[31mno\n" * 4096)


def _silent(_: Any, __: bytes) -> None:
    time.sleep(3600)


def _hangs_up(channel: Any, _: bytes) -> None:
    channel.close()


def _escapes(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command) + b"\x1b]0;owned\x07\x1b[2J\r\n" * 100)
    _end(channel)


def _nested(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command) + b"\x1edocker\x1f" + b"[" * 200_000 + b"\x1f0\x1e")
    _end(channel)


def _no_status(channel: Any, command: bytes) -> None:
    channel.sendall(mark_of(command) + b"alive\n")
    channel.shutdown_write()
    time.sleep(3600)


def _end(channel: Any) -> None:
    channel.send_exit_status(0)
    channel.close()


WAYS: Sequence[tuple[str, Serve]] = (
    ("a byte a second", _drip),
    ("four million marks", _marks),
    ("four million letters", _letters),
    ("endless output", _endless),
    ("endless errors", _errors),
    ("silence", _silent),
    ("hangs up", _hangs_up),
    ("control characters", _escapes),
    ("nested JSON", _nested),
    ("no exit status", _no_status),
)


def _until_closed(serve: Serve) -> Serve:
    """Return a server that ends quietly once the other side has closed the connection."""

    def served(channel: Any, command: bytes) -> None:
        with suppress(OSError, EOFError):
            serve(channel, command)

    return served


def hosts_apart(nodes: Nodes, folder: Path, ways: Sequence[tuple[str, Serve]], stack: ExitStack) -> list[str]:
    """Start hostile nodes in a process of the lowest priority."""
    reader, writer = os.pipe()
    server = os.fork()
    if server == 0:
        os.nice(19)
        with ExitStack() as own:
            os.write(writer, f"{json.dumps(_hosts_here(nodes, folder, ways, own))}\n".encode())
            signal.pause()
        os._exit(0)
    stack.callback(os.waitpid, server, 0)
    stack.callback(os.kill, server, signal.SIGKILL)
    os.close(writer)
    with os.fdopen(reader) as answer:
        names: list[str] = json.loads(answer.readline())
    return names


def _hosts_here(nodes: Nodes, folder: Path, ways: Sequence[tuple[str, Serve]], stack: ExitStack) -> list[str]:
    """Start hostile nodes and name them in the operator's ssh_config, before the lines for all hosts."""
    lines, names = [], []
    for number, (_, serve) in enumerate(ways):
        home = folder / f"hostile{number}"
        port, _ = stack.enter_context(ssh_server(home, _until_closed(serve)))
        names.append(f"hostile{number}")
        lines.append(
            f"Host hostile{number}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n"
            f"  IdentityFile {home}/.ssh/id_ecdsa\n  UserKnownHostsFile {home}/.ssh/known_hosts\n"
        )
    nodes.ssh_config.write_text("".join(lines) + nodes.ssh_config.read_text())
    return names


@dataclass(frozen=True, slots=True)
class Pushed:
    """Seconds until all honest bundles are here, and from Ctrl-C to the end: by the clock, and of CPUs."""

    lasted: float
    cpu: float
    cpu_with_ssh: float
    ended: float
    cpu_after: float


def cpu_seconds(pid: int, *, children: bool = False) -> float:
    """Return the processor time of a process itself; with `children`, also of those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15] if children else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pushed(one: Operator, hostile: Sequence[str], out: str) -> Pushed:
    """Push to the honest nodes, beside hostile ones, and end it by Ctrl-C once all bundles are here."""
    words = one.pushing(one.manifest(), *hostile, *one.nodes.addresses, "--out", out, "--new")
    began = time.monotonic()
    with subprocess.Popen(
        one.command(*words), cwd=one.folder, env=one.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as push:  # fmt: skip
        while len(list((one.folder / out).rglob("*.tar"))) < HONEST:
            if time.monotonic() - began > MOST_SECONDS or push.poll() not in (None, 0, 3, 5):
                raise SystemExit(f"{out}: the honest nodes did not finish: exit code {push.poll()}")
            time.sleep(0.1)
        lasted, cpu = time.monotonic() - began, cpu_seconds(push.pid)
        with_ssh = cpu_seconds(push.pid, children=True)
        asked = time.monotonic()
        os.kill(push.pid, signal.SIGINT)  # Popen.send_signal would reap a process that has ended
        # Waits without reaping, so that the times of the process can still be read.
        os.waitid(os.P_PID, push.pid, os.WEXITED | os.WNOWAIT)
        return Pushed(lasted, cpu, with_ssh, time.monotonic() - asked, cpu_seconds(push.pid) - cpu)


def main() -> None:
    """Print rounds as JSON; hostile nodes behave in five ways in each round, in turn."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        nodes = stack.enter_context(ssh_nodes(folder / "nodes", HONEST))
        one = Operator(folder, nodes)
        for number in range(ROUNDS):
            ways = WAYS[5 * (number % 2) :][:5]
            found: dict[str, Pushed] = {}
            for kind in ("alone", "beside") if number % 4 < 2 else ("beside", "alone"):
                with ExitStack() as servers:
                    before = nodes.ssh_config.read_text()
                    place = folder / f"round{number}"
                    hostile = hosts_apart(nodes, place, ways, servers) if kind == "beside" else []
                    found[kind] = pushed(one, hostile, f"{kind}{number}")
                    nodes.ssh_config.write_text(before)
            rounds.append(_round(ways, found["beside"], found["alone"]))
            print(f"round {number + 1} of {ROUNDS}: {rounds[-1]['over_alone']:.3f}", file=sys.stderr)
    ratios = [each["over_alone"] for each in rounds]
    json.dump({"median_over_alone": median(ratios), "rounds": rounds}, sys.stdout, indent=1)
    print()


def _round(ways: Sequence[tuple[str, Serve]], beside: Pushed, alone: Pushed) -> Mapping[str, Any]:
    return {
        "hostile": [name for name, _ in ways],
        "alone_seconds": alone.lasted,
        "seconds": beside.lasted,
        "over_alone": beside.lasted / alone.lasted,
        "alone_cpu_seconds": alone.cpu,
        "cpu_seconds": beside.cpu,
        "cpu_over_alone": beside.cpu / alone.cpu,
        "cpu_with_ssh_over_alone": beside.cpu_with_ssh / alone.cpu_with_ssh,
        "ends_after_interrupt_seconds": beside.ended,
        "ends_after_interrupt_cpu_seconds": beside.cpu_after,
    }


if __name__ == "__main__":
    main()

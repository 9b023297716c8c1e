"""Check the fabric between nodes in network namespaces, from one process that has imported torch once."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed  # once, ahead of all forks  # noqa: F401

from bench.node_check.check_results import judge
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from bench.runner.check import between_nodes
from bench.runner.check.request import NodesJob
from bench.runner.processes.jobs import Nodes
from bench.runner.processes.meeting_proxy import open_proxy
from tests.e2e.network import Network

SECRET = b"s" * 32
PORT = 29400
CLONE_NEWNET = 0x40000000
AHEAD = -15  # niceness


@dataclass(frozen=True)
class Checked:
    """The findings of node 0."""

    readings: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def named(self) -> dict[str, str]:
        """The subjects that did not pass, with their findings."""
        return {f.subject: f.found for f in self.findings if f.verdict in ("warn", "fail")}

    @property
    def rounds(self) -> tuple[int, int]:
        return self.readings["pairs"]["made"], self.readings["pairs"]["rounds"]


def check_fabric(
    net: Network,
    folder: Path,
    seconds: float = 0.3,
    on_step: Callable[[Sequence[int], str], None] | None = None,
) -> Checked:
    """Check the fabric; each node's agent is a process in its namespace.

    `on_step` is called with the agents' process ids and each phase of the leader.
    """
    agents: list[int] = []
    phases, seen = folder / "phases", 0
    try:
        for node in range(net.count):
            agents.append(_agent(net, node, folder, seconds))
        while os.waitid(os.P_PID, agents[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            lines = phases.read_text().splitlines() if phases.exists() else []
            for line in lines[seen:]:
                if on_step is not None:
                    on_step(agents, line)
            seen = len(lines)
            time.sleep(0.02)
    finally:
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert (folder / "readings.json").exists(), (folder / "agent-0.txt").read_text()[-3000:]
    readings = json.loads((folder / "readings.json").read_text())
    evidence = Evidence("nodes", "cpu", (), {name: Reading(name, data) for name, data in readings.items()})
    return Checked(readings, judge(evidence, Standards(None), ()))


def _agent(net: Network, node: int, folder: Path, seconds: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        take_precedence()
        log = os.open(folder / f"agent-{node}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        with Path(f"/run/netns/{net.namespace(node)}").open() as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        place = Nodes(net.count, node, f"{net.address(0)}:{PORT}", "0123456789ab")
        with open_proxy(place, SECRET) as at:
            job = NodesJob(at, (0,), 0.05, seconds, 300.0, "cpu")
            found = between_nodes.take_part(job, _say(folder / "phases") if node == 0 else lambda _: None)
        if node == 0:
            (folder / "readings.part").write_text(json.dumps(found))
            (folder / "readings.part").rename(folder / "readings.json")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def take_precedence() -> None:
    """Let this process and its children run ahead of other tests: a node has processors of its own.

    Linux compares the niceness of processes within a session, and sessions by the niceness of their groups.
    """
    os.setsid()
    group = Path("/proc/self/autogroup")
    with suppress(PermissionError):  # a container may forbid it, and has few other processes
        os.setpriority(os.PRIO_PROCESS, 0, AHEAD)
        if group.exists():
            group.write_text(str(AHEAD))


def _say(path: Path) -> Callable[[str], None]:
    def say(phase: str) -> None:
        with path.open("a") as file:
            file.write(f"{phase}\n")

    return say

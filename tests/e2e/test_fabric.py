"""Nodes in network namespaces exchange real data, and what is slow, lossy, cut or dead is named."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed  # once, ahead of all forks  # noqa: F401

from bench.node_check.all_checks import known_checks
from bench.node_check.check_results import judge
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from bench.runner.check import between_nodes
from bench.runner.check.request import NodesJob
from bench.runner.processes.door import open_door
from bench.runner.processes.jobs import Nodes
from tests.e2e.network import Network, network

pytestmark = pytest.mark.e2e
SECRET = b"s" * 32
PORT = 29400
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Checked:
    """What node 0 found."""

    readings: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def named(self) -> dict[str, str]:
        """The subjects that did not pass, with what was found."""
        return {f.subject: f.found for f in self.findings if f.verdict in ("warn", "fail")}

    @property
    def rounds(self) -> tuple[int, int]:
        return self.readings["pairs"]["made"], self.readings["pairs"]["rounds"]


def check(
    net: Network, folder: Path, seconds: float = 0.3, on_step: Callable[[list[int], str], None] | None = None
) -> Checked:
    """Check the fabric; each node's agent is a process in its namespace.

    `on_step` is called with the agents' process ids and each phase of the leader.
    """
    agents = [_agent(net, node, folder, seconds) for node in range(net.count)]
    phases, seen = folder / "phases", 0
    try:
        while os.waitpid(agents[0], os.WNOHANG) == (0, 0):
            lines = phases.read_text().splitlines() if phases.exists() else []
            for line in lines[seen:]:
                if on_step is not None:
                    on_step(agents, line)
            seen = len(lines)
            time.sleep(0.02)
    finally:
        for pid in agents[1:]:
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
        log = os.open(folder / f"agent-{node}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        with Path(f"/run/netns/{net.namespace(node)}").open() as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        place = Nodes(net.count, node, f"{net.address(0)}:{PORT}", "0123456789ab")
        with open_door(place, SECRET) as at:
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


def _say(path: Path) -> Callable[[str], None]:
    def say(phase: str) -> None:
        with path.open("a") as file:
            file.write(f"{phase}\n")

    return say


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_nodes, "JOIN_SECONDS", 60.0)
    monkeypatch.setattr(between_nodes, "START_SECONDS", {"cpu": 8.0})


@pytest.fixture
def eight() -> Iterator[Network]:
    with network(8) as net:
        yield net


@pytest.fixture
def five() -> Iterator[Network]:
    with network(5) as net:
        yield net


def test_of_eight_nodes_the_one_with_a_slow_link_is_named_in_seven_rounds(
    eight: Network, tmp_path: Path
) -> None:
    eight.slow(5, 12)
    checked = check(eight, tmp_path)
    assert checked.rounds == (7, 7)
    assert list(checked.named) == ["node 5"]
    assert "of the usual rate" in checked.named["node 5"]
    made = {(one["kind"], len(one["nodes"])) for one in checked.readings["exchange"]["exchanges"]}
    assert made == {(kind, count) for kind in ("all-reduce", "all-to-all") for count in (2, 4, 8)}
    assert all(one["seconds"] for one in checked.readings["exchange"]["exchanges"])


def test_where_nothing_is_slow_nothing_is_named(five: Network, tmp_path: Path) -> None:
    checked = check(five, tmp_path)
    assert checked.rounds == (5, 5)
    assert checked.named == {}


def test_a_lossy_link_is_named(five: Network, tmp_path: Path) -> None:
    five.lose_packets(2, 0.25)
    assert list(check(five, tmp_path).named) == ["node 2"]


def test_a_path_that_is_slow_between_two_fast_nodes_is_named(five: Network, tmp_path: Path) -> None:
    five.slow_pair(1, 3, packets_per_second=60)
    assert list(check(five, tmp_path).named) == ["node 1 - node 3"]


def test_a_node_that_dies_in_the_middle_is_named_and_the_rest_goes_on(five: Network, tmp_path: Path) -> None:
    def kill(agents: Sequence[int], phase: str) -> None:
        if phase == "round 3 of 5":
            os.kill(agents[4], signal.SIGSTOP)  # it answers nothing any more, as a node that hangs

    checked = check(five, tmp_path, on_step=kill)
    assert checked.rounds == (5, 5)
    assert list(checked.named) == ["node 4"]
    assert checked.named["node 4"] == "it was lost in round 3 of 5"
    pairs = {(one["sender"], one["receiver"]) for one in checked.readings["pairs"]["transfers"]}
    assert {(a, b) for a in range(4) for b in range(4) if a != b} <= pairs


def test_a_node_whose_link_goes_down_is_named_and_the_rest_goes_on(five: Network, tmp_path: Path) -> None:
    def cut(_: Sequence[int], phase: str) -> None:
        if phase == "round 2 of 5":
            five.cut(3)

    checked = check(five, tmp_path, on_step=cut)
    assert list(checked.named) == ["node 3"]
    assert checked.rounds == (5, 5)


def test_the_command_checks_two_nodes_and_signs_a_bundle_that_verifies(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    with network(2) as net:
        words = [sys.executable, "-m", "bench", "check", "--device", "cpu", "--nodes", "2", "--json"]
        words += ["--meet", f"{net.address(0)}:{PORT}", "--meet-secret", str(tmp_path / "secret")]
        words += ["--out", str(tmp_path / "out"), "--html", str(tmp_path / "page.html"), "--node"]
        started = [
            subprocess.Popen(net.inside(node, *words, str(node)), env=environment, stdout=subprocess.PIPE)
            for node in (0, 1)
        ]
        (out, _), (nothing, _) = (one.communicate(timeout=300) for one in started)
    assert [one.returncode for one in started] == [0, 0]
    assert nothing == b""
    document = json.loads(out)
    results = document["results"]
    assert (results["level"], results["verdict"]) == ("nodes", "pass")
    asked = {name for name, one in known_checks().items() if one.between_nodes}
    assert {f["check"] for f in results["findings"]} == asked
    assert (
        "pairs node 1" in (tmp_path / "page.html").read_text()
        or "node 1" in (tmp_path / "page.html").read_text()
    )
    with tarfile.open(document["bundle"]) as tar:
        assert "samples.jsonl" in tar.getnames()
    verified = [sys.executable, "-m", "bench", "verify", document["bundle"]]
    subprocess.run(verified, env=environment, check=True, stdout=subprocess.DEVNULL)

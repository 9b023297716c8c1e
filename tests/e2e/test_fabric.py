"""Nodes in network namespaces exchange real data, and what is slow, lossy, cut or dead is named."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.node_check.all_checks import known_checks
from bench.runner.check import between_nodes, node_step
from tests.documented_commands import printed
from tests.e2e.fabric import PORT, SECRET, Checked, check_fabric
from tests.e2e.network import Network, network
from tests.e2e.reader import BIN, Reader
from tests.patience import PATIENCE_SECONDS
from tests.warm import ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node that answers be late on a busy machine."""
    monkeypatch.setattr(between_nodes, "JOIN_SECONDS", 600.0)
    monkeypatch.setattr(node_step, "START_SECONDS", {"cpu": 120.0})


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for less time where a node never answers: each step with it takes all of that."""
    monkeypatch.setattr(node_step, "START_SECONDS", {"cpu": 15.0})
    monkeypatch.setattr(node_step, "SLOWNESS", 4)


@pytest.fixture
def eight() -> Iterator[Network]:
    with network(8) as net:
        yield net


@pytest.fixture
def four() -> Iterator[Network]:
    with network(4) as net:
        yield net


@pytest.fixture
def five() -> Iterator[Network]:
    with network(5) as net:
        yield net


def check_until(
    names: Sequence[str],
    net: Network,
    folder: Path,
    *,
    seconds: float = 0.3,
    on_step: Callable[[Sequence[int], str], None] | None = None,
) -> Checked:
    """Check up to three times, until these parts are named.

    Other tests use the same cores: a node that they slow down is slow, and is rightly named.
    """
    for attempt in range(3):
        own = folder / str(attempt)
        own.mkdir()
        checked = check_fabric(net, own, seconds, on_step)
        if list(checked.named) == [*names]:
            break
    return checked


def test_of_eight_nodes_the_one_with_a_slow_link_is_named_in_seven_rounds(
    eight: Network, tmp_path: Path
) -> None:
    eight.slow(5, 12)
    checked = check_until(["node 5"], eight, tmp_path)
    assert checked.rounds == (7, 7)
    assert list(checked.named) == ["node 5"]
    assert "of the usual rate" in checked.named["node 5"]
    made = {(one["kind"], len(one["nodes"])) for one in checked.readings["exchange"]["exchanges"]}
    assert made == {(kind, count) for kind in ("all-reduce", "all-to-all") for count in (2, 4, 8)}
    assert all(one["seconds"] for one in checked.readings["exchange"]["exchanges"])


def test_where_nothing_is_slow_nothing_is_named(five: Network, tmp_path: Path) -> None:
    checked = check_until([], five, tmp_path)
    assert checked.rounds == (5, 5)
    assert checked.named == {}


def test_a_lossy_link_is_named(four: Network, tmp_path: Path) -> None:
    four.lose_packets(2, 0.25)
    named = ["node 2"]
    assert list(check_until(named, four, tmp_path, seconds=0.1).named) == named


def test_a_path_that_is_slow_between_two_fast_nodes_is_named(four: Network, tmp_path: Path) -> None:
    four.slow_pair(1, 3, packets_per_second=60)
    named = ["node 1 - node 3"]
    assert list(check_until(named, four, tmp_path, seconds=0.1).named) == named


@pytest.mark.usefixtures("short_waits")
def test_a_node_that_dies_in_the_middle_is_named_and_the_rest_goes_on(five: Network, tmp_path: Path) -> None:
    def kill(agents: Sequence[int], phase: str) -> None:
        if phase == "round 3 of 5":
            os.kill(agents[4], signal.SIGSTOP)  # it answers nothing any more, as a node that hangs

    checked = check_until(["node 4"], five, tmp_path, on_step=kill)
    assert checked.rounds == (5, 5)
    assert checked.named == {"node 4": "it was lost in round 3 of 5"}
    pairs = {(one["sender"], one["receiver"]) for one in checked.readings["pairs"]["transfers"]}
    assert {(a, b) for a in range(4) for b in range(4) if a != b} <= pairs


@pytest.mark.usefixtures("short_waits")
def test_a_node_whose_link_goes_down_is_named_and_the_rest_goes_on(five: Network, tmp_path: Path) -> None:
    def cut(_: Sequence[int], phase: str) -> None:
        if phase == "waiting for 5 nodes":
            five.join(3)
        if phase == "round 2 of 5":
            five.cut(3)

    checked = check_until(["node 3"], five, tmp_path, on_step=cut)
    assert list(checked.named) == ["node 3"]
    assert checked.rounds == (5, 5)


def test_the_command_checks_two_nodes_and_signs_a_bundle_that_verifies(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    short = {"minutes": 5, "warm_seconds": 0, "seconds": 0.2, "soak_seconds": 0}
    manifest = {"schema": "bench/node-check/v1", "level": "nodes", "levels": {"nodes": short}}
    (tmp_path / "short.json").write_text(json.dumps(manifest))
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    with network(2) as net:
        words = [sys.executable, "-m", "bench", "check", str(tmp_path / "short.json")]
        words += ["--device", "cpu", "--nodes", "2", "--json"]
        words += ["--meet", f"{net.address(0)}:{PORT}", "--meet-secret", str(tmp_path / "secret")]
        words += ["--out", str(tmp_path / "out"), "--html", str(tmp_path / "page.html"), "--node"]
        started = [
            subprocess.Popen(net.inside(node, *words, str(node)), env=environment, stdout=subprocess.PIPE)
            for node in (0, 1)
        ]
        (out, _), (nothing, _) = (one.communicate(timeout=PATIENCE_SECONDS) for one in started)
    assert [one.returncode for one in started] == [0, 0]
    assert nothing == b""
    document = json.loads(out)
    results = document["results"]
    assert (results["level"], results["verdict"]) == ("nodes", "pass")
    asked = {name for name, one in known_checks().items() if one.between_nodes}
    assert {f["check"] for f in results["findings"]} == asked
    assert "all-reduce 2 nodes" in (tmp_path / "page.html").read_text()
    verified = [sys.executable, "-m", "bench", "verify", document["bundle"]]
    subprocess.run(verified, env=environment, check=True, stdout=subprocess.DEVNULL)


def test_the_documented_lines_check_two_nodes(tmp_path: Path) -> None:
    """The shipped manifest is bound over by a short one; processors stand in for the GPUs of the nodes."""
    (tmp_path / "meet-secret").write_bytes(SECRET)
    short = {"minutes": 5, "warm_seconds": 0, "seconds": 0.2, "soak_seconds": 0}
    manifest = {"schema": "bench/node-check/v1", "levels": {"nodes": short}}
    (tmp_path / "short.json").write_text(json.dumps(manifest))
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/bench").write_text(f'#!/bin/sh\nexec {BIN}/bench "$@" --device cpu\n')
    (tmp_path / "programs/bench").chmod(0o755)
    lines = (
        printed("bench check --nodes 2 --node 0 --meet 10.0.0.1:29400 --meet-secret meet-secret"),
        printed("bench check --nodes 2 --node 1 --meet 10.0.0.1:29400 --meet-secret meet-secret"),
    )
    with network(2) as net, ThreadPoolExecutor() as pool:
        reader = Reader(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path)}, {"10.0.0.1": net.address(0)})

        def type_on(node: int, line: str) -> str:
            bound = f"mount --bind short.json {ROOT}/bench/data/node-check.json && {line}"
            return reader.type(shlex.join(net.inside(node, "bash", "-c", bound)))

        said, other = pool.map(type_on, range(2), lines)
    assert "node 0 has the findings and the bundle" in other
    (bundle,) = tmp_path.glob("out/*.tar")
    assert bundle.name in said
    reader.type(f"{BIN}/bench verify {bundle}")

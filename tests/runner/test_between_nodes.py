"""The leader of a check between nodes decides who takes part, from what the nodes say when they come."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import __version__
from bench.base.strict_json import to_json
from bench.node_check.checks.gpudirect import GpuDirect
from bench.node_check.checks.ports import NodePorts
from bench.runner.check import between_nodes
from bench.runner.check.between_nodes import Arrival, _groups, take_part
from bench.runner.check.node_step import in_processes
from bench.runner.check.request import NodesJob
from bench.runner.processes.jobs import Nodes


class OneStore:
    """The store of a meeting, within one process."""

    def __init__(self, came: Mapping[int, Mapping[str, Any]]) -> None:
        self.values = {f"here/{node}": json.dumps(found).encode() for node, found in came.items()}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return self.values.keys() >= {*keys}


def arrival(node: int, **changes: Any) -> dict[str, Any]:
    own = Arrival(__version__, 1, "cpu", "10.77.0.2", NodePorts(node), GpuDirect(node, driver=False))
    return {**to_json(own), **changes}


def lead(
    came: Mapping[int, Mapping[str, Any]], nodes: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setattr(between_nodes, "JOIN_SECONDS", 0.2)
    monkeypatch.setattr(between_nodes, "meet", lambda *_: OneStore(came))
    job = NodesJob(Nodes(nodes, 0, "127.0.0.1:29400", "0123456789ab"), (0,), 0.0, 0.1, 60.0, "cpu")
    return dict(take_part(job, lambda _: None))


def test_nodes_that_do_not_come_or_do_not_fit_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came = {1: arrival(1, bench="9.9", strange=True), 2: arrival(2, lanes=7, device="cuda")}
    found = lead(came, 4, monkeypatch)
    assert found["pairs"]["lost"] == [
        {"node": 1, "why": f"it has bench 9.9, and node 0 has {__version__}"},
        {"node": 2, "why": "it takes part with 7 GPUs, and node 0 with 1 processes of its CPU"},
        {"node": 3, "why": "it did not come within 0 s"},
    ]
    assert (found["pairs"]["made"], found["pairs"]["transfers"]) == (0, [])
    assert [one["node"] for one in found["ports"]["nodes"]] == [0]


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (12, [2, 4, 8, 12])]
)
def test_exchanges_are_of_2_4_and_all_nodes(count: int, sizes: list[int]) -> None:
    assert [len(group) for group in _groups(range(count))] == sizes


def test_a_process_that_hangs_is_ended_by_its_timer_and_the_others_keep_their_results(tmp_path: Path) -> None:
    def member(number: int) -> None:
        if number == 1:
            time.sleep(3600)
        (tmp_path / str(number)).touch()

    statuses = in_processes(3, member, 0.5)
    assert [status is not None and os.WIFSIGNALED(status) for status in statuses] == [False, True, False]
    assert os.WTERMSIG(statuses[1] or 0) == signal.SIGALRM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]

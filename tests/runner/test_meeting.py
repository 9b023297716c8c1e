"""A node comes to the meeting of a job only after the leader has announced it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.runner.processes import nodes as several
from bench.runner.processes.door import open_door
from bench.runner.processes.jobs import FollowJob, LastJob, Nodes
from tests.e2e.nodes import free_port
from tests.patience import PATIENCE_SECONDS

SECRET = b"s" * 32


@pytest.fixture
def doors() -> Iterator[tuple[Nodes, Nodes]]:
    meet = f"127.0.0.1:{free_port()}"
    with (
        open_door(Nodes(2, 0, meet, "abc"), SECRET) as leader,
        open_door(Nodes(2, 1, meet, "abc"), SECRET) as other,
    ):
        yield leader, other


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of torchrun, none of which is started."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def ignore(event: Mapping[str, Any]) -> None:
    pass


def test_a_node_that_comes_before_the_leader_does_not_close_its_meeting(
    doors: tuple[Nodes, Nodes], started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun closes a meeting in which a node gave up waiting, and the leader could never join it."""
    _, other = doors
    monkeypatch.setattr(several, "ANNOUNCEMENT_SECONDS", 0.5)
    following = FollowJob(number=4, device="cpu", gpus=2, nodes=other)
    assert several.across_nodes(following, ignore, tmp_path) == 1
    assert started == []


def test_a_node_joins_the_job_that_the_leader_announced_and_no_other(
    doors: tuple[Nodes, Nodes], started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = doors
    monkeypatch.setattr(several, "ANNOUNCEMENT_SECONDS", PATIENCE_SECONDS)
    for node in ("leader", "other"):
        (tmp_path / node).mkdir()
    leading = LastJob(device="cpu", gpus=2, nodes=leader, number=4)
    assert several.across_nodes(leading, ignore, tmp_path / "leader") == 0
    following = FollowJob(number=4, device="cpu", gpus=2, nodes=other)
    assert several.across_nodes(following, ignore, tmp_path / "other") == 0
    assert ["--rdzv-id=abc-4" in command for command in started] == [True, True]
    assert not several.is_announced(other, 5, 0.5)

"""`bench status`, `cancel` and `clean`: trouble with one node costs no other run its answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.base.errors import EnvironmentCannot
from bench.cli import pushed_runs
from bench.cli.pushed_runs import PushedRunsArguments
from bench.push.connection import Unreachable
from bench.push.push_record import Record, Records
from bench.push.remote import Node
from tests.push.strange_nodes import Answers
from tests.push.test_push_record import R

A = dataclasses.replace(R, local=True, state="running")
B = dataclasses.replace(A, run_id="bbbb00000000", host="gpu2")
C = dataclasses.replace(A, run_id="cccc00000000", host="gpu3")
BOTH = PushedRunsArguments(runs=(A.run_id, B.run_id, C.run_id))
Commands = dict[str, list[str]]  # what each node was asked, by run


def refuses(_script: str) -> str:
    raise Unreachable("10.0.0.1 port 22: connection refused", where="gpu1")


def confuses(_script: str) -> str:
    raise ZeroDivisionError("a mistake of bench")


def nonsense(_script: str) -> str:
    return "alive\nbundle abc\n"


def silent_forever(_script: str) -> str:
    raise EnvironmentCannot("its answer is larger than 1,048,576 bytes", where="gpu1")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Records of three runs; the nodes of the second and third answer well, and note their scripts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for record in (A, B, C):
        Records().save(dataclasses.replace(record, out=str(tmp_path)))
    return {A.run_id: [], B.run_id: [], C.run_id: []}


Trouble = Callable[[str], str]
EACH_TROUBLE = pytest.mark.parametrize("trouble", [refuses, confuses, nonsense, silent_forever])


def nodes(
    asked: Commands, trouble: Trouble, state: str, monkeypatch: pytest.MonkeyPatch, ends_by: str = "never"
) -> None:
    """Replace the nodes: one has trouble, the others are in a state until a script with `ends_by` arrives."""

    def node(record: Record) -> Node:
        def answer(script: str) -> str:
            asked[record.run_id].append(script)
            ended = any(ends_by in earlier for earlier in asked[record.run_id])
            return ("exit 5\n" if ended else state) if "request.json" in script else "its last line"

        return Answers(trouble if record.run_id == A.run_id else answer)

    monkeypatch.setattr(pushed_runs, "_node_of", node)


@EACH_TROUBLE
def test_status_tells_the_state_of_the_other_runs(
    asked: Commands, trouble: Trouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(asked, trouble, "alive\n", monkeypatch)
    assert pushed_runs.status(BOTH) == 3
    rows = capsys.readouterr().out.splitlines()
    assert [("alive: its last line" in row) for row in rows if "p1p1p1" in row] == [False, True, True]
    assert pushed_runs.status(dataclasses.replace(BOTH, as_json=True)) == 3
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["node"] == "alive: its last line" for run in runs] == [False, True, True]


@EACH_TROUBLE
def test_cancel_ends_the_other_runs(
    asked: Commands, trouble: Trouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rented node costs money until its run is told to end."""
    nodes(asked, trouble, "alive\n", monkeypatch, ends_by="kill -TERM")
    assert pushed_runs.cancel(BOTH) == 3
    for record in (B, C):
        assert any("kill -TERM" in script for script in asked[record.run_id])
    out, err = capsys.readouterr()
    assert out.count("has ended; bench fetch ") == 2
    assert err.startswith("gpu1: ") and err.count("\n") == 1


@EACH_TROUBLE
def test_clean_removes_the_other_runs(
    asked: Commands, trouble: Trouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(asked, trouble, "exit 0\n", monkeypatch)
    assert pushed_runs.clean(BOTH) == 3
    assert capsys.readouterr().out.count("removed everything of run") == 2
    states = {record.run_id: record.state for record in Records().all()}
    assert states == {A.run_id: "running", B.run_id: "cancelled", C.run_id: "cancelled"}


def test_a_run_that_goes_on_is_not_removed(
    asked: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(asked, lambda _: "exit 0\n", "alive\n", monkeypatch)
    assert pushed_runs.clean(BOTH) == 2
    out, err = capsys.readouterr()
    assert out == "gpu1: removed everything of run aaaa00000000\n"
    for record in (B, C):
        assert f"is still running  (bench cancel {record.run_id} ends it)\n" in err


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        (
            False,
            "still runs 0 s after it was asked to end  (bench cancel --kill bbbb00000000 ends it",
        ),
        (True, "still runs 0 s after it was killed  (its processes wait for the kernel"),
    ],
)
def test_a_run_that_does_not_end_is_an_error_that_says_what_to_do(
    asked: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kill: bool,
    said: str,
) -> None:
    monkeypatch.setattr(pushed_runs, "END_SECONDS", 0.0)
    nodes(asked, lambda _: "exit 0\n", "alive\n", monkeypatch)
    assert pushed_runs.cancel(dataclasses.replace(BOTH, kill=kill)) == 3
    out, err = capsys.readouterr()
    assert out == "gpu1: run aaaa00000000 is not running (exit)\n"
    assert f"gpu2: run bbbb00000000 {said}" in err


def test_runs_can_be_asked_to_end_without_waiting_for_them(
    asked: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(asked, lambda _: "exit 0\n", "alive\n", monkeypatch)
    assert pushed_runs.cancel(dataclasses.replace(BOTH, detach=True)) == 0
    assert capsys.readouterr().out.count("was asked to end; bench fetch ") == 2
    assert any("kill -TERM" in script for script in asked[B.run_id])


def test_a_run_that_hangs_can_be_killed(
    asked: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(asked, lambda _: "exit 0\n", "alive\n", monkeypatch, ends_by="kill -KILL")
    assert pushed_runs.cancel(dataclasses.replace(BOTH, kill=True)) == 0
    assert not any("kill -TERM" in script for script in asked[B.run_id])
    assert "run bbbb00000000 was killed; a new push resumes it" in capsys.readouterr().out


def test_without_trouble_the_exit_code_is_0(asked: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes(asked, lambda _: "exit 5\n", "exit 5\n", monkeypatch)
    for command in (pushed_runs.status, pushed_runs.cancel, pushed_runs.clean):
        assert command(BOTH) == 0

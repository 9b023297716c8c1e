"""Texts of nodes and bundles reach the operator's terminal through one door, without control characters."""

from __future__ import annotations

import ast
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import bench
from bench.base.errors import EnvironmentCannot
from bench.cli import pushed_runs
from bench.cli.push import report_results
from bench.cli.pushed_runs import PushedRunsArguments
from bench.push.push_record import Record, Records
from bench.push.remote import Node
from bench.push.request import Result
from bench.push.screen import Screen
from bench.push.terminal import tell, tell_block, tell_json, tell_table
from tests.push.strange_nodes import CONTROLS, FORBIDDEN, Answers
from tests.push.test_push_record import R

ROOT = Path(bench.__file__).parent


def evil(outcome: str | None = "failed", host: str = "n0") -> Result:
    """A result whose texts were all written by a stranger."""
    error = EnvironmentCannot(CONTROLS, where=CONTROLS, advice=CONTROLS)
    return Result(
        f"{host}{CONTROLS}", "run", outcome, CONTROLS, error=error, image=CONTROLS, engine=CONTROLS,
        bundle=Path(f"/x/{CONTROLS}"), last=CONTROLS,
    )  # fmt: skip


OUTCOMES = ["done", "incomplete", "failed", "lost", "running", "ready", "would", "unchanged"]


def assert_clean(*streams: str) -> None:
    for text in streams:
        assert not FORBIDDEN.search(text)
        assert not any(line.startswith("bench: a line of its own") for line in text.splitlines())


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_lines_of_a_push(outcome: str, hosts: int, capsys: pytest.CaptureFixture[str]) -> None:
    results = [evil(outcome, f"n{number}") for number in range(hosts)]
    with Screen([result.host for result in results]) as screen:
        screen.say(CONTROLS)
        for result in results:
            screen.show(evil(None), CONTROLS)
            screen.sent(result, 1, 2)
            screen.log(result, [CONTROLS, CONTROLS])
            screen.show(result, CONTROLS)
    report_results(results, "p1", None, as_json=False)
    report_results(results, "p1", None, as_json=True)
    captured = capsys.readouterr()
    assert "owned" in captured.err
    assert_clean(captured.out, captured.err)


@pytest.mark.parametrize("outcome", [*OUTCOMES, None])
def test_the_live_table_of_a_push(outcome: str | None) -> None:
    """The table itself moves the cursor; so it is drawn on something that is not a terminal."""
    screen = Screen(["n0", "n1"])
    screen.log(evil(outcome, "n0"), [CONTROLS])
    screen.sent(evil(outcome, "n1"), 1, 2)
    drawn = Console(file=io.StringIO(), width=1000)
    drawn.print(screen.table())
    assert isinstance(drawn.file, io.StringIO) and "owned" in drawn.file.getvalue()
    assert_clean(drawn.file.getvalue())


def test_a_terminal_gets_no_title_from_a_node() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200)
    with Screen(["n0", "n1"], console) as screen:
        screen.say(CONTROLS)
        screen.show(evil(), CONTROLS)
    assert "owned" in file.getvalue()
    assert (
        "\x1b]" not in file.getvalue() and "\x07" not in file.getvalue() and "\u202e" not in file.getvalue()
    )


def test_a_closed_screen_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """After an interrupt, threads that still wait for a node may report."""
    screen = Screen(["n0"])
    with screen:
        pass
    screen.show(evil())
    screen.say("late")
    screen.sent(evil(), 1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def evil_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    """A recorded run of a node that answers with control characters only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = dataclasses.replace(R, host=f"n{CONTROLS}", local=True, out=str(tmp_path), state="running")
    Records().save(record)
    states = iter(["alive\n", "alive\n"])

    def node(_record: Record) -> Node:
        return Answers(lambda script: next(states, CONTROLS) if "request.json" in script else CONTROLS)

    monkeypatch.setattr(pushed_runs, "_node_of", node)
    yield record


@pytest.mark.parametrize("command", ["status", "cancel", "clean"])
def test_commands_for_pushed_runs(
    evil_node: Record, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = PushedRunsArguments(runs=(evil_node.run_id,))
    for _ in range(3):  # a run that is alive, and then a node that answers nothing readable
        getattr(pushed_runs, command)(arguments)
    pushed_runs.status(dataclasses.replace(arguments, as_json=True))
    captured = capsys.readouterr()
    assert "owned" in captured.out
    assert_clean(captured.out, captured.err)


def test_every_function_of_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    tell(CONTROLS, CONTROLS)
    tell_block(CONTROLS.replace("\n", ""))
    tell_table(("a", CONTROLS), [[CONTROLS, CONTROLS], [1, Path(CONTROLS)]])
    tell_table(("a", "b"), [[CONTROLS, CONTROLS * 20]], widest=40)
    tell_table(("a", "b"), [], widest=40)
    tell_json({CONTROLS: CONTROLS})
    assert_clean(capsys.readouterr().out)


def test_nothing_of_a_push_is_printed_by_another_way() -> None:
    """Each line that a push prints goes through bench/push/terminal.py, or through Screen's only print."""
    paths = [*(ROOT / "push").glob("*.py"), ROOT / "cli/push.py", ROOT / "cli/pushed_runs.py"]
    found = {
        (path.name, ast.unparse(node.func))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in ("print", "table", "input"))
            or ast.unparse(node.func).startswith(("sys.stdout.", "sys.stderr.", "self._console.print"))
        )
    }
    assert found == {
        ("terminal.py", "print"),
        ("terminal.py", "table"),
        ("screen.py", "self._console.print"),
    }

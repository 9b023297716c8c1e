"""Colours, the pager, and terminals in odd states: dumb, lost, without UTF-8; a pipe that is closed early."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.base.colour import RED, RESET, painted, wanted
from bench.cli.pager import pager_of
from tests.terminals import on_terminal

ROOT = Path(__file__).parents[2]
ESCAPE = "\x1b["
BUNDLE = str(ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar")
PRICES = ["prices", "h200"]
ON_TERMINAL = {"TERM": "xterm", "PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("environment", "terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),  # no-color.org: only if it is not empty
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0", "TERM": "xterm"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_who_gets_colours(environment: Mapping[str, str], terminal: bool, coloured: bool) -> None:
    assert wanted(environment, terminal=terminal) == coloured


def test_colours_change_no_letter_and_mark_what_stands_out() -> None:
    table = "    setting    s/step\n--  -------  --------\n    tf32     WRONG GRADIENTS\n*   naive        0.5"
    text = f"{table}\nSIMULATED-X"
    shown = painted(text)
    assert re.sub(r"\x1b\[\d+m", "", shown) == text
    assert f"{RED}WRONG GRADIENTS{RESET}" in shown
    assert shown.endswith("\nSIMULATED-X")
    assert "\x1b[1m*   naive        0.5\x1b[0m" in shown


@pytest.mark.parametrize("columns", [40, 80])
def test_on_a_terminal_a_table_has_colours_and_the_same_width(columns: int) -> None:
    plain = on_terminal(["compare", BUNDLE], columns, {"BENCH_PAGER": "", "NO_COLOR": "1"})
    coloured = on_terminal(["compare", BUNDLE], columns)
    assert ESCAPE not in plain.text
    assert ESCAPE in coloured.text
    assert re.sub(r"\x1b\[\d+m", "", coloured.text) == plain.text


@pytest.mark.parametrize("words", [["prices", "h200", "--json"], ["compare", BUNDLE, "--format", "csv"]])
def test_documents_have_no_colours(words: list[str]) -> None:
    shown = on_terminal(words, 80, {"BENCH_PAGER": "", "FORCE_COLOR": "1"})
    assert shown.code == 0
    assert ESCAPE not in shown.text


@pytest.mark.parametrize(
    ("environment", "pager"),
    [
        ({"BENCH_PAGER": "sh -c cat", "PAGER": "no-such-pager"}, "sh -c cat"),
        ({"PAGER": "sh"}, "sh"),
        ({"BENCH_PAGER": "", "PAGER": "sh"}, None),
        ({"BENCH_PAGER": "cat"}, None),
        ({"PAGER": "no-such-pager"}, None),
        ({"PAGER": "'"}, None),
        ({"PAGER": "sh", "TERM": "dumb"}, None),
    ],
)
def test_which_pager(environment: dict[str, str], pager: str | None) -> None:
    assert pager_of(ON_TERMINAL | environment) == pager


def test_long_output_goes_through_the_pager_with_colours_and_the_terminals_width(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    environment = {"BENCH_PAGER": f"tee {seen}"}
    paged = on_terminal(["compare", BUNDLE], 80, environment)
    assert paged.code == 0
    assert seen.read_text() == paged.text == on_terminal(["compare", BUNDLE], 80).text
    for words in (["help"], ["help", "run"], ["plan", "--help"]):
        assert on_terminal(words, 80, environment).code == 0
        assert seen.read_text().startswith("usage: bench")


@pytest.mark.parametrize("words", [["comapre"], ["prices", "h999"]])
def test_errors_and_the_exit_code_go_around_the_pager(words: list[str], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    shown = on_terminal(words, 80, {"BENCH_PAGER": f"tee {seen}"})
    assert shown.code == 2
    assert not seen.exists()


def test_a_pager_that_is_left_early_is_no_error() -> None:
    shown = on_terminal(["prices"], 80, {"BENCH_PAGER": "head -n 2"})
    assert (shown.code, len(shown.lines)) == (0, 2)


def test_a_pipe_that_is_closed_early_is_no_error_and_has_no_pager(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BENCH_PAGER": f"tee {tmp_path / 'seen'}"}
    command = f"{sys.executable} -m bench prices | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    assert not (tmp_path / "seen").exists()


def test_without_utf8_a_table_is_aligned_as_it_is_spelled() -> None:
    shown = on_terminal(["compare", BUNDLE], 80, {"BENCH_PAGER": "", "NO_COLOR": "1", "SPELLED_IN": "ascii"})
    assert "+-" in shown.text and "±" not in shown.text
    assert shown.widest <= 80
    head = next(line for line in shown.lines if "s/step" in line)
    rows = [line for line in shown.lines if re.search(r"16 x 32 x 2 .*\+-.*\+-", line)]
    assert {len(row) for row in rows[-3:]} == {len(head)}  # the last column, days, is aligned right


def test_a_lost_terminal_ends_the_command() -> None:
    """The kernel hangs up on the foreground processes of a terminal that is gone."""
    child, terminal = pty.fork()
    if child == 0:
        termios.tcsetwinsize(1, (24, 80))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "BENCH_PAGER": "sleep 600"}
        os.execve(sys.executable, [sys.executable, "-m", "bench", "prices"], environment)
    time.sleep(0.1)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (-signal.SIGHUP, 3)

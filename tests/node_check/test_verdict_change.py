"""The command of --on-change: when it is called, and with which document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files as shipped
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import main
from bench.node_check.reason import reason_of
from bench.runner.check import verdict_change
from bench.runner.check.check_index import FILE_NAME, last_told
from tests.node_check.checks.node import evidence
from tests.node_check.made import results
from tests.node_check.test_command import _home, machine

assert _home

XID = {"xids": {"3": [79]}}
RECORD = 'import os, pathlib, sys; pathlib.Path("told").open("a").write(sys.stdin.read())'
SCRIPTS = Path(str(shipped("bench.data"))) / "monitoring"


def checked(monkeypatch: pytest.MonkeyPatch, *command: str, **scenario: Any) -> int:
    machine(monkeypatch, **scenario)
    words = " ".join(f"'{word}'" for word in command or (sys.executable, "-c", RECORD))
    return main(["check", "--level", "passive", "--nagios", "--on-change", words])


def told() -> list[tuple[str | None, str]]:
    lines = Path("told").read_text().splitlines() if Path("told").exists() else []
    return [(line["from"], line["to"]) for line in map(json.loads, lines)]


def test_the_command_is_called_when_the_verdict_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned = {"all": {"PersistenceMode": 0}}
    scenarios = [{}, {}, warned, XID, XID, {"no_driver": True}, warned, {}]
    codes = [checked(monkeypatch, **scenario) for scenario in scenarios]
    assert codes == [0, 0, 1, 2, 2, 3, 1, 0]
    assert told() == [(None, "pass"), ("pass", "fail"), ("fail", "not-run"), ("not-run", "pass")]
    Path("out", FILE_NAME).unlink()
    assert checked(monkeypatch) == 0
    assert told()[4:] == [(None, "pass")]


def test_the_command_gets_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, **XID) == 2
    document = json.loads(Path("told").read_text())
    assert document["schema"] == "bench/verdict-change/v1"
    assert document["reason"].startswith("bench: xid: GPU 3: Xid 79")
    assert (document["verdict"], document["level"], document["simulated"]) == ("fail", "passive", True)
    assert [f["gpu"] for f in document["findings"] if f["verdict"] == "fail"] == [3]
    assert Path(document["bundle"]).is_file()
    assert Path(document["bundle"]).stem == document["run"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("sh", "-c", "echo no route to host >&2; exit 7"), "ended with exit code 7: no route to host"),
        (("sh", "-c", "kill -9 $$"), "was ended by signal 9"),
        ((sys.executable, "-c", "print(chr(27), 1); exit(7)"), r"ended with exit code 7: \x1b 1"),
        (("nowhere/to/be/found",), "cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_fails_changes_no_verdict_and_is_called_again(
    command: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert checked(monkeypatch) == 0
    assert checked(monkeypatch, *command, **XID) == 2
    said = capsys.readouterr()
    assert f"{error}; it is called again after the next check" in said.err
    assert said.out.splitlines()[-1].startswith("BENCH CRITICAL - xid: GPU 3: Xid 79")
    assert checked(monkeypatch, **XID) == 2
    assert told() == [(None, "pass"), ("pass", "fail")]


def test_a_command_that_does_not_end_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verdict_change, "COMMAND_SECONDS", 1.0)
    assert checked(monkeypatch, "sh", "-c", "sleep 600 & echo $! > pid; wait") == 0
    assert "did not end within 1 s and was killed" in capsys.readouterr().err
    pid = int(Path("pid").read_text())
    for _ in range(100):
        with suppress(FileNotFoundError):
            if "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
                time.sleep(0.1)
                continue
        return
    raise AssertionError("what the command started still runs")


def test_json_has_the_change_and_a_command_without_words_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    passive = ["check", "--level", "passive", "--json"]
    assert main([*passive, "--on-change", "true"]) == 0
    change = {"before": None, "after": "pass", "error": None}
    assert json.loads(capsys.readouterr().out)["change"] == change
    assert main([*passive, "--on-change", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["change"] is None
    assert main(passive) == 0
    assert "change" not in json.loads(capsys.readouterr().out)
    assert last_told(Path("out")) == "pass"
    for words in ("", "'"):
        assert main(["check", "--on-change", words]) == 2
    assert main(["check", "--on-change", "true", "--engine", "docker"]) == 2
    assert "--on-change names a file of this machine" in capsys.readouterr().err


def test_a_reason_fits_any_scheduler(tmp_path: Path) -> None:
    found = evidence(tmp_path, xids={"3": [79]})
    done = results(found)
    worst = next(f for f in done.findings if f.verdict == "fail")
    odd = replace(worst, found="'$(reboot)' \"`x`\" \\ é\n" + "x" * 500)
    reason = reason_of(replace(done, findings=(odd,)))
    assert reason.startswith("bench: xid: GPU 3: (reboot) x x")
    assert len(reason) == 120
    assert reason.isascii() and not set(reason) & set("'\"`$\\\n")
    assert reason_of(replace(done, verdict="pass")) == "bench: passes"


def acted(name: str, told: dict[str, str], answers: str) -> list[str]:
    """Run a shipped script; programs in its PATH record their arguments, and answer by `answers`."""
    Path("bin").mkdir(exist_ok=True)
    for program in ("sinfo", "scontrol", "kubectl"):
        Path("bin", program).write_text(f'#!/bin/sh\necho "{program} $*" >> calls\n{answers}\n')
        Path("bin", program).chmod(0o755)
    Path("calls").write_text("")
    environment = {"PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    environment |= {"NODE_NAME": "n1", "BENCH_REASON": "bench: xid: GPU 3", **told}
    subprocess.run([str(SCRIPTS / name)], check=True, env=environment)
    calls = Path("calls").read_text().splitlines()
    return [call for call in calls if "sinfo" not in call and " get " not in call]


DRAIN = "scontrol update NodeName=n1 State=DRAIN Reason=bench: xid: GPU 3"
ANNOTATE = "annotate --overwrite node n1 bench/reason=bench: xid: GPU 3"


@pytest.mark.parametrize(
    ("to", "reason_now", "calls"),
    [
        ("fail", "none", [DRAIN]),
        (
            "not-run",
            "bench: rows: GPU 1",
            [DRAIN],
        ),
        ("fail", "new fans", []),
        ("pass", "bench: xid: GPU 3", ["scontrol update NodeName=n1 State=RESUME"]),
        ("pass", "new fans", []),
        ("pass", "none", []),
    ],
)
def test_slurms_script_touches_only_what_bench_drained(to: str, reason_now: str, calls: list[str]) -> None:
    answers = f'case $0 in *sinfo) echo "{reason_now}";; esac'
    assert acted("slurm-change.sh", {"BENCH_TO": to}, answers) == calls


@pytest.mark.parametrize(
    ("to", "ours", "cordoned", "calls"),
    [
        ("fail", "", "", [ANNOTATE, "cordon n1"]),
        ("fail", "", "true", []),
        (
            "fail",
            "bench: rows",
            "true",
            [ANNOTATE, "cordon n1"],
        ),
        ("pass", "bench: rows", "true", ["uncordon n1", "annotate node n1 bench/reason-"]),
        ("pass", "", "true", []),
    ],
)
def test_the_script_for_kubernetes_touches_only_what_bench_cordoned(
    to: str, ours: str, cordoned: str, calls: list[str]
) -> None:
    answers = f'case "$*" in *annotations*) echo "{ours}";; *unschedulable*) echo "{cordoned}";; esac'
    found = acted("kubernetes-change.sh", {"BENCH_TO": to}, answers)
    assert found == [f"kubectl {call}" for call in calls]

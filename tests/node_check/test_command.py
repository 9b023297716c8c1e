"""`bench check` as a user sees it: what it prints, the exit code, the bundle. The machine is a scenario."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.report.text.junit import junit
from bench.runner.check import check_node
from bench.runner.machine import exclusive_use as others
from bench.runner.machine.exclusive_use import warn_of_others

FAST = ("--level", "quick", "--skip", "disk", "--skip", "host-memory")
# For tests of anything else than what these checks find: each starts a process for every GPU.
PAIRED = ("copies", "peers", "all-reduce", "agreement")
BRISK = (*FAST, *(word for name in PAIRED for word in ("--skip", name)))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    yield


def machine(monkeypatch: pytest.MonkeyPatch, **scenario: Any) -> None:
    Path("machine.json").write_text(json.dumps({"count": 4, **scenario}))
    monkeypatch.setenv("BENCH_FAKE_NVML", str(Path("machine.json").absolute()))


def test_a_good_node(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine(monkeypatch)
    assert main(["check", *FAST, "--junit", "j.xml", "--html", "h.html"]) == 0
    out = capsys.readouterr().out
    assert "SIMULATED 4 x NVIDIA H200" in out
    assert "PASS" in out.splitlines()[-1]
    assert "NOT-RUN" not in out
    assert "disk, host-memory: left out on purpose" in out
    (bundle,) = Path("out").glob("*.tar")
    assert main(["verify", str(bundle)]) == 0
    assert "check      pass at level quick, judged again" in capsys.readouterr().out
    suite = ElementTree.parse("j.xml").getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert int(suite.get("skipped") or 0) >= 2
    assert "stragglers" in Path("h.html").read_text().lower()
    assert main(["compare", str(bundle)]) == 0
    assert main(["export", str(bundle), "--to", "script", "x"]) == 2
    assert main(["reproduce", str(bundle)]) == 2


def test_only_the_file_for_ci_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7-n01")
    assert main(["check", *BRISK, "--junit", "j.xml"]) == 0
    assert ElementTree.parse("j.xml").getroot().get("hostname") == "rack7-n01"
    (bundle,) = Path("out").glob("*.tar")
    assert b"rack7-n01" not in bundle.read_bytes()
    check = verify_bundle(bundle, recompute).contents
    assert isinstance(check, CheckContents)
    assert "hostname" not in ElementTree.fromstring(junit(check.results)).attrib


def test_a_bad_node_fails_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, rates={"matmul": {"2": 0.884}}, xids={"1": [79]})
    assert main(["check", *FAST, "--json", "--junit", "j.xml"]) == 1
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["verdict"] == "fail"
    assert {(f["check"], f["gpu"]) for f in results["findings"] if f["verdict"] == "fail"} == {
        ("matmul", 2),
        ("xid", 1),
    }
    assert int(ElementTree.parse("j.xml").getroot().get("failures") or 0) >= 2


@pytest.mark.parametrize(
    ("scenario", "code", "state"),
    [
        ({}, 0, "BENCH OK"),
        ({"all": {"PersistenceMode": 0}}, 1, "BENCH WARNING"),
        ({"rates": {"memory": {"0": 0.5}}}, 2, "BENCH CRITICAL"),
        ({"crash": ["soak"]}, 3, "BENCH UNKNOWN"),
    ],
)
def test_monitoring_gets_one_line_and_its_own_codes(
    scenario: dict[str, Any],
    code: int,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(monkeypatch, **scenario)
    assert main(["check", *BRISK, "--nagios"]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(state)
    text, _, figures = line.partition(" | ")
    assert re.match(r"'matmul-bf16'=[\d.]+TFLOP/s;[\d.]+:;[\d.]+: '", figures)
    assert "|" not in text
    assert len(line.encode()) < 1024


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nofile.json"], "nofile.json: no such file"),
        (["typo.json"], "/skip/0"),
        (["--skip", "matmull"], 'nearest: "matmul"'),
        (["--level", "fast"], "--level fast: not a choice"),
        (["--levle", "quick"], "--levle"),
        (["-o", "/proc/x", "--device", "cpu", "--level", "quick"], "/proc/x"),
    ],
)
def test_with_nagios_a_wrong_argument_is_unknown(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """CRITICAL would say that the node is bad."""
    Path("typo.json").write_text('{"schema": "bench/node-check/v1", "skip": ["mat|mul"]}')
    code = main(["check", *words, "--nagios"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("BENCH UNKNOWN - ")
    assert reason in line
    assert "|" not in line
    assert code == 3


def test_the_passive_level_puts_no_load_on_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job computes on GPU 1, which is no fault; GPU 2 has lost half of its lanes, which is one."""
    job = {"ComputeRunningProcesses": [{"pid": 7, "usedGpuMemory": 2**33}]}
    machine(monkeypatch, gpus={"1": job, "2": {"CurrPcieLinkWidth": 8}})
    assert main(["check", "--level", "passive", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    findings = found["results"]["findings"]
    failed = [(f["check"], f["gpu"], f["found"]) for f in findings if f["verdict"] == "fail"]
    assert failed == [("pcie", 2, "x8 without load")]
    made = {f["check"] for f in findings if f["found"] != "not made at the level passive"}
    assert made == {check.name for check in check_node.known_checks().values() if check.passive}
    contents = verify_bundle(Path(found["bundle"]), recompute).contents
    assert isinstance(contents, CheckContents)
    assert not any(reading.data.get("figures") for reading in contents.evidence.readings.values())


def test_a_passive_check_warns_of_a_gpu_that_is_held_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The power cap is no fault; one moment is no reason to take a node out of use."""
    machine(
        monkeypatch, gpus={"1": {"CurrentClocksEventReasons": 4}, "2": {"CurrentClocksEventReasons": 0x84}}
    )
    assert main(["check", "--level", "passive", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    clocks = {f["gpu"]: (f["verdict"], f["found"]) for f in findings if f["subject"].endswith("clocks")}
    fine = ("pass", "not held back")
    assert clocks == {0: fine, 1: fine, 2: ("warn", "power brake"), 3: fine}


def test_before_a_job_its_gpus_must_be_free_and_the_reason_fits_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"ComputeRunningProcesses": [{"pid": 7, "usedGpuMemory": 2**33}]}
    prolog = ["check", "--level", "prolog", "--reason"]
    machine(monkeypatch, gpus={"1": job})
    assert main(prolog) == 1
    assert capsys.readouterr().out == "bench: strangers: GPU 1: 1 processes compute there (pid 7)\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    machine(monkeypatch, gpus={"1": job}, xids={"1": [79]})
    assert main(prolog) == 0
    assert capsys.readouterr().out == "bench: passes\n"
    assert main(["check", "--level", "prolog", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    made = {f["check"] for f in findings if f["found"] != "not made at the level prolog"}
    quiet = {check.name for check in check_node.known_checks().values() if check.passive}
    assert made == {*quiet, "strangers"}


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_a_driver_that_hangs_is_waited_for_no_longer_than_a_level_without_load_takes(
    turn: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_node, "LEAST_NVML_SECONDS", 0.3)
    short = {"minutes": 0.025, "warm_seconds": 0, "seconds": 1, "soak_seconds": 1}
    Path("short.json").write_text(json.dumps({"schema": "bench/node-check/v1", "levels": {"prolog": short}}))
    machine(monkeypatch, hang={"gpu": 1, "query": "MemoryInfo", "from": turn})
    waited: list[float] = []
    seconds = check_node.CheckRun._nvml_seconds
    monkeypatch.setattr(
        check_node.CheckRun, "_nvml_seconds", lambda run: waited.append(seconds(run)) or waited[-1]
    )
    assert main(["check", "short.json", "--level", "prolog", "--reason"]) == 3
    assert capsys.readouterr().out.startswith("bench: ")
    assert max(waited) <= 1.5


def test_a_passive_check_disturbs_no_run_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(others, "PLACE", tmp_path)
    monkeypatch.setattr(check_node.nvml, "is_fake", lambda: False)
    said: list[str] = []
    with warn_of_others([f"GPU-0000000{gpu}-0000-0000-0000-000000000000" for gpu in range(4)], said.append):
        assert main(["check", "--level", "passive"]) == 0
    assert said == []
    assert "another bench" not in capsys.readouterr().err


def test_a_node_whose_gpus_work_for_somebody_can_be_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, gpus={"1": {"ComputeRunningProcesses": [{"pid": 7, "usedGpuMemory": 2**33}]}})
    reason = "GPU 1: 1 processes compute there (pid 7)"
    assert main(["check", *BRISK, "--if-idle"]) == 0
    assert capsys.readouterr().out == f"not checked, its GPUs are in use: {reason}\n"
    assert main(["check", *BRISK, "--if-idle", "--nagios"]) == 0
    assert capsys.readouterr().out == f"BENCH OK - not checked, its GPUs are in use: {reason}\n"
    assert main(["check", *BRISK, "--if-idle", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"bundle": None, "not_checked": reason, "results": None}
    assert not list(Path("out").iterdir())
    machine(monkeypatch)
    assert main(["check", *BRISK, "--if-idle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--level", "passive"], "the level passive puts no load on the node"),
        (["--level", "prolog"], "the level prolog puts no load on the node"),
        (["--challenge", "challenge.json"], "a busy node leaves no bundle to certify"),
    ],
)
def test_only_a_check_with_load_and_without_an_operator_can_leave_a_busy_node_alone(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--if-idle", *words]) == 2
    assert reason in capsys.readouterr().err


def test_the_newest_checks_are_kept_and_nothing_else_is_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)

    def checked(*words: str) -> Path:
        assert main(["check", "--level", "passive", "--json", *words]) == 0
        return Path(json.loads(capsys.readouterr().out)["bundle"])

    first = checked().rename("out/baseline.tar")
    others = {"0123456789ab.tar", "notes.txt", "baseline.tar", first.stem}
    for name in ("0123456789ab.tar", "notes.txt"):
        Path("out", name).write_text("of somebody else")
    second, third = checked(), checked()
    before = {path.name for path in Path("out").iterdir()}
    newest = checked("--keep-last", "2")
    after = {path.name for path in Path("out").iterdir()}
    assert before - after == {second.name, second.stem}
    assert {third.name, third.stem, newest.name, newest.stem} == after - before - others | {
        third.name,
        third.stem,
    }


@pytest.mark.parametrize(("limit", "left"), [(("--keep-days", "1h"), 2), (("--keep-gb", "0.00005"), 1)])
def test_checks_are_kept_by_age_and_by_size(
    limit: tuple[str, str], left: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    for _ in range(2):
        assert main(["check", "--level", "passive"]) == 0
    long_ago = time.time() - 7200
    os.utime(min(Path("out").glob("*.tar"), key=lambda bundle: bundle.stat().st_mtime), (long_ago, long_ago))
    assert main(["check", "--level", "passive", *limit]) == 0
    assert len(list(Path("out").glob("*.tar"))) == left
    assert len(Path("out/history.jsonl").read_text().splitlines()) == 3


def test_a_history_that_cannot_be_kept_changes_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    Path("out/.history.lock").mkdir(parents=True)
    assert main(["check", "--level", "passive"]) == 0
    assert "the history in out was not kept: [Errno 21] Is a directory" in capsys.readouterr().err


def test_without_nagios_wrong_arguments_have_the_usual_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--level", "fast"]) == 2
    said = capsys.readouterr()
    assert (said.out, "not a choice" in said.err) == ("", True)


def test_a_driver_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_node, "NVML_SECONDS", 1.0)
    for turn in (1, 4):
        machine(monkeypatch, hang={"gpu": 1, "query": "NvLinkState.3", "from": turn})
        assert main(["check", *BRISK, "--json"]) == 3
        results = json.loads(capsys.readouterr().out)["results"]
        assert results["verdict"] == "not-run"
        said = next(f for f in results["findings"] if f["check"] == "present" and f["verdict"] == "not-run")
        assert "timed out after 1 s in NVML on GPU 1" in said["found"]


def test_a_check_that_hangs_is_ended_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, stuck=["memory"])
    short = dict(check_node.known_checks())
    from dataclasses import replace

    short["memory"] = replace(short["memory"], limit_seconds=1.0)
    monkeypatch.setattr(check_node, "known_checks", lambda: short)
    assert main(["check", *BRISK, "--json"]) == 3
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    assert {f["check"] for f in findings if f["verdict"] == "not-run" and f["counts"]} == {"memory"}


def test_a_check_without_time_left_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    short = {"minutes": 0.01, "warm_seconds": 0, "seconds": 1, "soak_seconds": 1}
    Path("short.json").write_text(json.dumps({"schema": "bench/node-check/v1", "levels": {"quick": short}}))
    assert main(["check", "short.json", *FAST, "--json"]) == 3
    assert "of this level were over" in capsys.readouterr().out


def test_without_a_driver_the_result_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, no_driver=True)
    assert main(["check", *FAST]) == 3
    out = capsys.readouterr().out
    assert "no NVIDIA driver answers" in out
    assert out.splitlines()[-1].startswith("NOT-RUN   15 not-run, 1 pass, ")  # what passes is the network
    lines = out.splitlines()
    (told,) = [i for i, line in enumerate(lines) if line.startswith("NOT-RUN  present, strangers: no NVIDIA")]
    assert "is the driver loaded" in lines[told + 1]
    assert "expected an answer" not in out


def test_the_last_line_counts_the_checks_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, rates={"matmul": {"2": 0.884}}, all={"PersistenceMode": 0})
    assert main(["check", *FAST]) == 1
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("present"))
    verdicts = Counter(line.split()[1] for line in lines[start : lines.index("", start)] if line[0] != " ")
    asked = [check for check in check_node.known_checks().values() if check.is_asked_at("quick")]
    assert verdicts.total() == len(asked)
    assert lines[-1].startswith(
        f"FAIL   {verdicts['FAIL']} fail, {verdicts['WARN']} warn, {verdicts['pass']} pass, "
        f"{verdicts['-']} not possible here, of {len(asked)} checks"
    )


def test_output_fits_the_terminal_and_is_not_wrapped_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, rates={"matmul": {"2": 0.884}}, all={"PersistenceMode": 0})
    wide = {}
    for columns in (None, 120, 60):
        monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["check", *FAST]) == 1
        wide[columns] = max(map(len, capsys.readouterr().out.splitlines()))
    assert 60 < wide[120] <= 120 < (wide[None] or 0)
    assert wide[60] <= 60


def test_a_lost_gpu_does_not_stop_the_check_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, lost={"2": 1})
    assert main(["check", *BRISK, "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    assert [f["gpu"] for f in findings if f["check"] == "present" and f["verdict"] == "fail"] == [2]
    assert {f["gpu"] for f in findings if f["figure"] == "memory"} == {0, 1, 3}


def test_fewer_gpus_than_asked_for_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    Path("eight.json").write_text('{"schema": "bench/node-check/v1", "gpus": 8}')
    assert main(["check", "eight.json", *BRISK]) == 1
    assert "4 NVIDIA H200" in capsys.readouterr().out


def test_only_visible_gpus_are_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, gpus={"0": {"EccMode": [0, 0]}})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert main(["check", *BRISK, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    assert {f["gpu"] for f in findings if f["gpu"] is not None} == {2, 3}


def test_a_named_gpu_that_is_missing_fails_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,9")
    assert main(["check", *BRISK]) == 1
    assert "present: GPU 9: CUDA_VISIBLE_DEVICES names it, but it is not present" in capsys.readouterr().out
    (bundle,) = Path("out").glob("*.tar")
    assert main(["verify", str(bundle)]) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,-1,9")  # CUDA ignores entries after -1
    assert main(["check", *BRISK]) == 0


def test_gpus_outside_the_schedulers_allocation_are_not_expected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = {"error": "NVMLError_NoPermission", "value": 4}
    machine(monkeypatch, handles={"0": theirs, "3": theirs})
    assert main(["check", *BRISK, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [gpu["index"] for gpu in results["node"]["gpus"]] == [1, 2]
    present = [f["found"] for f in results["findings"] if f["check"] == "present"]
    assert present == ["2 NVIDIA H200, 4 in the machine", "has each of the 2 GPUs that NVML names"]


def test_parts_of_a_gpu_are_not_compared_with_a_whole_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, all={"MigMode": [1, 1]})
    assert main(["check", *BRISK, "--json"]) == 3
    findings = json.loads(capsys.readouterr().out)["results"]["findings"]
    (matmul,) = [f for f in findings if f["check"] == "matmul"]
    assert matmul["verdict"] == "not-run" and "GPU 0 is divided into parts (MIG)" in matmul["found"]
    assert not [f for f in findings if f["verdict"] == "fail"]


def test_the_second_check_is_compared_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated machine is never used as a GPU's past."""
    machine(monkeypatch)
    assert main(["check", *BRISK]) == 0
    machine(monkeypatch)
    capsys.readouterr()
    assert main(["check", *BRISK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["history"] == {}


def test_wrong_arguments_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--skip", "matmull"]) == 2
    assert 'nearest: "matmul"' in capsys.readouterr().err
    assert main(["check", "nowhere.json"]) == 2
    Path("mine.json").write_text('{"schema": "bench/node-check/v1", "require": ["disk"]}')
    assert main(["check", "mine.json", "--skip", "disk"]) == 2
    assert "--skip disk: the manifest requires it" in capsys.readouterr().err


def test_an_unwritable_scratch_folder_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    Path("file").touch()
    for scratch in ("nowhere", "file", "/proc"):
        assert main(["check", *FAST, "--scratch", scratch]) == 2
        said = capsys.readouterr()
        assert f"--scratch {scratch}: no file can be written in this folder" in said.err
        assert said.out == ""
    assert not Path("out").exists()


def test_a_missing_history_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch)
    assert main(["check", *BRISK, "--history", "nowhere"]) == 2
    assert "--history nowhere: no such file or folder" in capsys.readouterr().err
    assert main(["check", *BRISK, "--history", "nowhere", "--nagios"]) == 3
    assert "--history nowhere: no such file or folder" in capsys.readouterr().out
    assert not Path("out").exists()
    Path("empty").mkdir()
    assert main(["check", *BRISK, "--history", "empty"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "--nodes 2 without --meet"),
        (["--meet", "10.0.0.1:29400"], "--meet without --nodes"),
        (["--node", "1"], "--node 1 of --nodes 1"),
        (["--nodes", "2", "--node", "2", "--meet", "10.0.0.1:29400"], "--node 2 of --nodes 2"),
        (["--nodes", "129", "--meet", "10.0.0.1:29400"], "--nodes 129 is more than 128"),
        (
            ["--nodes", "2", "--meet", "10.0.0.1:29400", "--level", "quick"],
            "--nodes excludes --level",
        ),
        (
            ["--nodes", "2", "--meet", "10.0.0.1:29400", "--if-idle"],
            "--nodes excludes --if-idle",
        ),
        (["--nodes", "2", "--meet", "10.0.0.1:29400"], "without a secret"),
        (["--level", "nodes"], "the level nodes checks what is between several nodes"),
    ],
)
def test_a_check_between_nodes_says_what_is_missing(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BENCH_MEET_SECRET", raising=False)
    assert main(["check", "--device", "cpu", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(check_node.known_checks())


@pytest.mark.usefixtures("quick_children")
def test_a_check_and_a_run_at_the_same_time_warn_about_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(others, "PLACE", tmp_path)
    skips = [word for name in check_node.known_checks() if name != "host-memory" for word in ("--skip", name)]
    said: list[str] = []
    with warn_of_others(["cpu"], said.append):
        main(["check", "--device", "cpu", "--level", "quick", *skips])
    assert "another bench measures on this machine since " in capsys.readouterr().err
    assert [text.partition(" at ")[0] for text in said] == ["another bench began on this machine"]


@pytest.mark.e2e
@pytest.mark.usefixtures("quick_children")
def test_real_checks_run_on_a_cpu_with_gloo(tmp_path: Path) -> None:
    """The same checks, torch and process groups; tiny sizes. Nothing is simulated."""
    level = {"minutes": 60, "warm_seconds": 0.1, "seconds": 0.2, "soak_seconds": 2}  # a busy machine is slow
    manifest = {"schema": "bench/node-check/v1", "gpus": 2, "level": "quick", "levels": {"quick": level}}
    Path("two.json").write_text(json.dumps(manifest))
    environment = {k: v for k, v in os.environ.items() if k != "BENCH_FAKE_NVML"}
    command = [sys.executable, "-m", "bench", "check", "two.json", "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    document = json.loads(done.stdout)
    results = document["results"]
    assert not results["simulated"]
    read = {f["check"] for f in results["findings"] if f["value"] is not None}
    assert {"matmul", "memory", "copies", "peers", "all-reduce", "soak", "disk", "host-memory"} <= read
    agreed = [f["verdict"] for f in results["findings"] if f["check"] == "agreement"]
    assert agreed == ["pass", "pass"]
    assert not [f for f in results["findings"] if f["verdict"] == "not-run" and f["counts"]]
    assert main(["verify", document["bundle"]]) == 0

"""Errors of memory and processors, from trees of files like the kernel's and from the records of daemons."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base import kernel_log
from bench.base.strict_json import to_json
from bench.node_check.checks.host_errors import HostErrors, MemoryCounter, judge, lines_of, read_errors
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import CORRECTED_ERRORS, COUNTED_AT, Past, Standards

NOW = 1.79e9
GOOD = HostErrors(NOW, "m", edac=True, controllers=(MemoryCounter("mc0", 3, 0, 1e6),))


@pytest.fixture(autouse=True)
def closed_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_log, "LOG", str(tmp_path / "no log"))


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MC = "sys/devices/system/edac/mc/mc0"
EDAC = {
    f"{MC}/ce_count": "12\n", f"{MC}/ue_count": "1\n", f"{MC}/seconds_since_reset": "86400\n",
    f"{MC}/dimm0/dimm_label": "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0\n", f"{MC}/dimm0/dimm_ce_count": "12\n",
    f"{MC}/dimm0/dimm_ue_count": "1\n",
    f"{MC}/rank1/dimm_ce_count": "0\n", f"{MC}/rank1/dimm_ue_count": "0\n",
    "proc/interrupts": "            CPU0       CPU1\nMCE:          0          2   Machine check exceptions\n"
                       "THR:          5          1   Threshold APIC interrupts\nERR:  7\n",
    "etc/machine-id": "8f1c0a\n",
}  # fmt: skip


def judged(errors: HostErrors, history: Mapping[str, Past] | None = None) -> list[Finding]:
    reading = Reading("host-errors", {"errors": to_json(errors)})
    return list(
        judge(
            Evidence("passive", "cpu", (), {"host-errors": reading}), Standards(None, history=history or {})
        )
    )


def bad(errors: HostErrors, history: Mapping[str, Past] | None = None) -> list[Finding]:
    return [finding for finding in judged(errors, history) if finding.verdict in ("warn", "fail")]


def test_the_kernels_counters_are_read(tmp_path: Path) -> None:
    errors = read_errors(write(tmp_path, EDAC))
    assert errors.controllers == (MemoryCounter("mc0", 12, 1, 86400.0),)
    assert [module.name for module in errors.modules] == ["mc0 CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "mc0 rank1"]
    assert errors.interrupts == {"MCE": 2, "THR": 6}
    assert len(errors.machine) == 16 and "8f1c0a" not in errors.machine
    assert errors.log_closed is not None
    module, processors = bad(errors)
    assert (module.verdict, module.subject) == ("fail", "memory mc0 CPU_SrcID#0_Ha#0_Chan#1_DIMM#0")
    assert module.found == "1 uncorrected errors since boot, 12 corrected"
    assert (processors.verdict, processors.found) == ("fail", "2 machine check exceptions since boot")


def test_a_machine_that_counts_nothing_is_not_called_healthy(tmp_path: Path) -> None:
    findings = judged(read_errors(tmp_path))
    assert {(finding.verdict, finding.counts) for finding in findings} == {("not-run", False)}
    assert findings[0].found == "no EDAC driver counts errors of this machine's memory"


def test_counters_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    write(tmp_path, {f"{MC}/ce_count": "N/A\n"})
    (tmp_path / MC / "ue_count").mkdir()
    errors = read_errors(tmp_path)
    assert errors.unreadable == ("mc0: its counters cannot be read",)
    finding = judged(errors)[0]
    assert (finding.verdict, finding.counts, finding.found) == ("not-run", False, errors.unreadable[0])


def test_errors_that_no_module_accounts_for_are_the_controllers(tmp_path: Path) -> None:
    noinfo = HostErrors(NOW, edac=True, controllers=(MemoryCounter("mc0", 0, 1, 1e6),),
                        modules=(MemoryCounter("mc0 A1", 0, 0, 1e6),))  # fmt: skip
    assert [finding.subject for finding in bad(noinfo)] == ["memory mc0"]


@pytest.mark.parametrize(
    ("corrected", "days", "verdict"),
    [
        (9, 0.1, None),
        (10, 0.1, "warn"),
        (299, 30, None),
        (300, 30, "warn"),
        (1000, 0.5, "fail"),
        (30_000, 30, "fail"),
    ],
)
def test_corrected_errors_are_judged_by_the_day(corrected: int, days: float, verdict: str | None) -> None:
    counter = MemoryCounter("mc0", corrected, 0, days * 86400)
    findings = bad(HostErrors(NOW, edac=True, controllers=(counter,)))
    assert [finding.verdict for finding in findings] == ([verdict] if verdict else [])


def test_new_errors_are_found_though_the_mean_since_boot_is_low() -> None:
    grown = HostErrors(NOW, "m", edac=True, controllers=(MemoryCounter("mc0", 60, 0, 300 * 86400.0),))
    day_ago = {"m": Past(("r",), counters={CORRECTED_ERRORS: 40, COUNTED_AT: int(NOW - 86400)})}
    assert bad(grown) == []
    (finding,) = bad(grown, day_ago)
    assert (finding.verdict, finding.basis) == ("warn", "history")
    assert finding.found == "20 corrected errors in 24.0 h, 20 a day"
    assert bad(grown, {"another": day_ago["m"]}) == []


def test_a_counter_that_began_anew_is_not_compared_with_its_past() -> None:
    rebooted = HostErrors(NOW, "m", edac=True, controllers=(MemoryCounter("mc0", 12, 0, 600.0),))
    past = {"m": Past(("r",), counters={CORRECTED_ERRORS: 4000, COUNTED_AT: int(NOW - 3600)})}
    assert [f.found for f in bad(rebooted, past)] == [
        "12 corrected errors since boot, 12 a day", "12 corrected errors in 1.0 h, 12 a day",
    ]  # fmt: skip


LINES = {
    "mce: [Hardware Error]: Machine check events logged": "",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0": "uncorrected",
    "EDAC MC1: 3 CE on DIMM_A1": "corrected",
    "{1}[Hardware Error]: event severity: corrected": "corrected",
    "{1}[Hardware Error]: event severity: fatal": "uncorrected",
    "[Hardware Error]: Deferred error, no action required.": "uncorrected",
    "Memory failure: 0x12345: recovery action for dirty LRU page: Recovered": "uncorrected",
    "mce: CPU0: Thermal monitoring enabled (TM1)": "",
}


def test_lines_of_the_kernels_log_are_told_apart() -> None:
    uncorrected, corrected = lines_of(LINES)
    assert list(uncorrected) == [line for line, kind in LINES.items() if kind == "uncorrected"]
    assert list(corrected) == [line for line, kind in LINES.items() if kind == "corrected"]


def test_the_kernels_log_is_read_and_an_uncorrected_error_in_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "kmsg")
    monkeypatch.setattr(kernel_log, "LOG", str(tmp_path / "kmsg"))
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        os.write(writer, b"2,1,2,-;EDAC MC0: 1 UE on DIMM_A1\x1b[2J\n SUBSYSTEM=edac\n")
        (finding,) = bad(read_errors(write(tmp_path, {"etc/machine-id": "a"})))
    finally:
        os.close(writer)
    assert finding.found == "1 lines since boot, the last: EDAC MC0: 1 UE on DIMM_A1?[2J"


def rasdaemon(root: Path, *rows: tuple[str, int, str, str]) -> None:
    path = root / "var/lib/rasdaemon/ras-mc_event.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE mc_event (timestamp TEXT, err_count INTEGER, err_type TEXT, label TEXT)"
        )
        database.executemany("INSERT INTO mc_event VALUES (?, ?, ?, ?)", rows)
    database.close()


def test_records_of_rasdaemon_count_for_a_month(tmp_path: Path) -> None:
    day = time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime())
    rasdaemon(
        tmp_path,
        (day, 1, "Uncorrected", "DIMM_A1"),
        (day, 400, "Corrected", "DIMM_B1"),
        (day, 4, "Corrected", "DIMM_C1"),
        ("2020-01-01 00:00:00 +0000", 9, "Uncorrected", "DIMM_C1"),
    )
    assert [(f.subject, f.verdict) for f in bad(read_errors(tmp_path))] == [
        ("rasdaemon: DIMM_A1", "fail"), ("rasdaemon: DIMM_B1", "warn"),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_database_of_another_form_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "var/lib/rasdaemon/ras-mc_event.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (trouble,) = read_errors(tmp_path).daemon_trouble
    assert trouble.startswith("rasdaemon: /var/lib/rasdaemon/ras-mc_event.db: ")


def test_records_of_mcelog_count_for_a_month(tmp_path: Path) -> None:
    record = (
        "Hardware event. This is not a software error.\nMCE 0\nTIME {at} Thu\nMCG status:\n{kind} error\n"
    )
    text = "".join(
        record.format(at=int(at), kind=kind)
        for at, kind in ((time.time(), "Uncorrected"), (time.time(), "Corrected"), (1e9, "Uncorrected"))
    )
    errors = read_errors(write(tmp_path, {"var/log/mcelog": text + "Hardware event without a time"}))
    assert errors.recorded == {"mcelog": (MemoryCounter("this machine", 1, 1),)}


def test_a_healthy_machine_passes_with_one_answer() -> None:
    (finding,) = judged(GOOD)
    assert (finding.verdict, finding.found) == (
        "pass",
        "1 controllers, none uncorrected, 3 corrected since boot",
    )


def test_what_could_not_be_read_names_its_part() -> None:
    closed = replace(GOOD, edac=False, controllers=(), log_closed="EPERM", daemon_trouble=("locked",))
    found = [(one.check, one.subject, one.verdict, one.counts) for one in judged(closed)]
    parts = ("memory", "kernel log", "records")
    assert found == [("host-errors", part, "not-run", False) for part in parts]
    unread = replace(GOOD, controllers=(), unreadable=("mc0: EIO",))
    assert [(one.subject, one.found) for one in judged(unread)] == [("memory", "mc0: EIO")]


def test_values_of_a_stranger_are_refused() -> None:
    data: Any = {
        "errors": {"at": NOW, "controllers": [{"name": "mc0", "corrected": "many", "uncorrected": 0}]}
    }
    with pytest.raises(ValueError, match="corrected"):
        list(
            judge(
                Evidence("quick", "cuda", (), {"host-errors": Reading("host-errors", data)}), Standards(None)
            )
        )

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
from bench.node_check.checks import host_errors
from bench.node_check.checks.host_errors import HostErrors, MemoryCounter, judge, lines_of, read_errors
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import CORRECTED_ERRORS, COUNTED_AT, Past, Standards
from tests.node_check.checks.answers import answers

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
    evidence = Evidence("passive", "cpu", (), {"host-errors": reading})
    return answers("host-errors", judge(evidence, Standards(None, history=history or {})))


def bad(errors: HostErrors, history: Mapping[str, Past] | None = None) -> list[Finding]:
    return [finding for finding in judged(errors, history) if finding.verdict in ("warn", "fail")]


def test_the_kernels_counters_are_read(tmp_path: Path) -> None:
    errors = read_errors(write(tmp_path, EDAC))
    assert errors.controllers == (MemoryCounter("mc0", 12, 1, 86400.0),)
    assert [module.name for module in errors.modules] == ["mc0 CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "mc0 rank1"]
    assert errors.interrupts == {"MCE": 2, "THR": 6}
    assert errors.edac
    assert len(errors.machine) == 16 and "8f1c0a" not in errors.machine
    assert errors.log_closed is not None
    module, processors = bad(errors)
    assert "pass" not in {finding.verdict for finding in judged(errors)}
    assert (module.verdict, module.subject) == ("fail", "memory mc0 CPU_SrcID#0_Ha#0_Chan#1_DIMM#0")
    assert module.found == "1 uncorrected errors since boot, 12 corrected"
    assert (processors.verdict, processors.found) == ("fail", "2 machine check exceptions since boot")


def test_the_errors_of_this_machine_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(host_errors.ROOT) == "/"
    monkeypatch.setattr(host_errors, "ROOT", write(tmp_path, EDAC))
    began = time.time()
    (errors,) = host_errors.measure(None, None).values()  # type: ignore[arg-type]
    assert errors["controllers"] == to_json(read_errors(tmp_path).controllers)
    assert list(host_errors.measure(None, None)) == ["errors"]  # type: ignore[arg-type]
    assert began <= errors["at"] <= time.time()


def test_a_machine_that_counts_nothing_is_not_called_healthy(tmp_path: Path) -> None:
    findings = judged(read_errors(tmp_path))
    assert {(finding.verdict, finding.counts) for finding in findings} == {("not-run", False)}
    assert findings[0].found == "no EDAC driver counts errors of this machine's memory"
    assert findings[0].advice == (
        "load the EDAC driver of the processor; a virtual machine and a container have none"
    )
    assert findings[1].found.startswith("the kernel's log is closed (")
    assert findings[1].advice == "run as root, or set kernel.dmesg_restrict=0"
    assert len(findings) == 2


def test_counters_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    write(tmp_path, {f"{MC}/ce_count": "N/A\n"})
    (tmp_path / MC / "ue_count").mkdir()
    errors = read_errors(tmp_path)
    assert errors.unreadable == ("mc0: its counters cannot be read",)
    finding = judged(errors)[0]
    assert (finding.verdict, finding.counts, finding.found) == ("not-run", False, errors.unreadable[0])


@pytest.mark.parametrize("missing", ["ce", "ue"])
def test_a_counter_without_both_of_its_counts_is_none(tmp_path: Path, missing: str) -> None:
    files = {f"{MC}/ce_count": "1", f"{MC}/ue_count": "2", f"{MC}/dimm0/dimm_ce_count": "3",
             f"{MC}/dimm0/dimm_ue_count": "4"}  # fmt: skip
    without = {name: text for name, text in files.items() if name != f"{MC}/dimm0/dimm_{missing}_count"}
    errors = read_errors(write(tmp_path / "a", without))
    assert (errors.controllers, errors.modules) == ((MemoryCounter("mc0", 1, 2),), ())
    without = {name: text for name, text in files.items() if name != f"{MC}/{missing}_count"}
    errors = read_errors(write(tmp_path / "b", without))
    assert (errors.edac, errors.controllers, errors.modules) == (True, (), ())


def test_modules_of_one_controller_that_cannot_be_read_do_not_hide_another(tmp_path: Path) -> None:
    second = MC.replace("mc0", "mc1")
    errors = read_errors(write(tmp_path, {
        f"{MC}/ce_count": "", f"{MC}/ue_count": "0", f"{second}/ce_count": "5", f"{second}/ue_count": "0",
    }))  # fmt: skip
    assert errors.unreadable == ("mc0: its counters cannot be read",)
    assert errors.controllers == (MemoryCounter("mc1", 5, 0),)
    (finding, _) = judged(errors)
    assert (finding.verdict, finding.found) == (
        "pass", "1 controllers, none uncorrected, 5 corrected since boot",
    )  # fmt: skip


def test_at_most_512_modules_are_kept(tmp_path: Path) -> None:
    files = {f"{MC}/dimm{n}/dimm_{kind}_count": "0" for n in range(513) for kind in ("ce", "ue")}
    errors = read_errors(write(tmp_path, {**files, f"{MC}/ce_count": "0", f"{MC}/ue_count": "0"}))
    assert len(errors.modules) == 512


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("MCE: 1 2 3 Machine check exceptions", {"MCE": 6}),
        ("DFR: 4 Deferred Error APIC interrupts", {"DFR": 4}),
        ("THR: 1 1", {"THR": 2}),
        ("  MCE : 7", {"MCE": 7}),
        ("MCP: 9 Machine check polls", {}),
        ("MCE", {"MCE": 0}),
    ],
)
def test_machine_checks_are_added_up_over_the_processors(
    tmp_path: Path, line: str, found: dict[str, int]
) -> None:
    assert read_errors(write(tmp_path, {"proc/interrupts": f"{line}\n"})).interrupts == found


def test_files_that_are_not_utf_8_are_read_too(tmp_path: Path) -> None:
    record = f"Hardware event\nTIME {int(time.time())} x\nUncorrected error "
    write(tmp_path, {"proc/interrupts": "", "var/log/mcelog": ""})
    (tmp_path / "proc/interrupts").write_bytes(b"X: \xff\nMCE: 3\n")
    (tmp_path / "var/log/mcelog").write_bytes(record.encode() + b"\xff\n")
    errors = read_errors(tmp_path)
    assert (errors.interrupts, errors.recorded) == (
        {"MCE": 3}, {"mcelog": (MemoryCounter("this machine", 0, 1),)},
    )  # fmt: skip


def test_a_kernel_that_counts_no_interrupts_is_known_as_such(tmp_path: Path) -> None:
    assert read_errors(tmp_path).interrupts is None


@pytest.mark.parametrize(
    ("interrupts", "found"),
    [
        ({"MCE": 1}, ["1 machine check exceptions since boot"]),
        ({"DFR": 2}, ["2 deferred errors since boot"]),
        ({"MCE": 1, "DFR": 2}, ["1 machine check exceptions since boot", "2 deferred errors since boot"]),
        ({"THR": 5, "MCE": 0}, []),
        (None, []),
    ],
)
def test_an_interrupt_for_an_uncorrected_error_fails(
    interrupts: dict[str, int] | None, found: list[str]
) -> None:
    findings = bad(replace(GOOD, interrupts=interrupts))
    assert [finding.found for finding in findings] == found
    assert {finding.verdict for finding in findings} <= {"fail"}
    assert [finding.source for finding in findings] == [
        f"Linux: /proc/interrupts, {name}" for name in ("MCE", "DFR") if interrupts and interrupts.get(name)
    ]


def test_modules_that_account_for_all_errors_are_named_in_place_of_their_controller() -> None:
    controller = MemoryCounter("mc0", 5, 2, 1e6)
    parts = (MemoryCounter("mc0 A1", 2, 1, 1e6), MemoryCounter("mc0 B1", 3, 1, 1e6))
    errors = replace(GOOD, controllers=(controller,), modules=parts)
    assert [finding.subject for finding in bad(errors)] == ["memory mc0 A1", "memory mc0 B1"]
    for other in (replace(controller, corrected=6), replace(controller, uncorrected=3)):
        found = bad(replace(errors, controllers=(other,)))
        assert [finding.subject for finding in found][-1] == "memory mc0"


def test_errors_that_no_module_accounts_for_are_the_controllers(tmp_path: Path) -> None:
    noinfo = HostErrors(NOW, edac=True, controllers=(MemoryCounter("mc0", 0, 1, 1e6),),
                        modules=(MemoryCounter("mc0 A1", 0, 0, 1e6),))  # fmt: skip
    assert [finding.subject for finding in bad(noinfo)] == ["memory mc0"]


@pytest.mark.parametrize(
    ("corrected", "days", "verdict"),
    [
        (9, 0.1, None),
        (10, 0.1, "warn"),
        (15, 2, None),
        (999, 1, "warn"),
        (1000, 1, "fail"),
        (2000, 2, "fail"),
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


def test_corrected_errors_of_unknown_days_are_not_judged_by_the_day() -> None:
    assert bad(HostErrors(NOW, edac=True, controllers=(MemoryCounter("mc0", 10**6, 0),))) == []


def test_too_many_corrected_errors_say_how_many_and_by_which_limit() -> None:
    (finding,) = bad(replace(GOOD, controllers=(MemoryCounter("mc0", 25, 0, 2 * 86400.0),)))
    assert finding.found == "25 corrected errors since boot, 12 a day"
    assert finding.expected == "under 10 a day; 1000 fail"
    assert finding.source == "mcelog.conf: ce-error-threshold = 10 / 24h"
    assert finding.basis == "rule"
    assert finding.advice == (
        "drain the node; replace the named module, or move it to another slot to see which of both is bad"
    )


@pytest.mark.parametrize(
    ("before", "hours", "since_boot", "new"),
    [
        (50, 24, 9e6, 10),
        (51, 24, 9e6, None),
        (40, 48, 9e6, 20),
        (41, 48, 9e6, None),
        (51, 24, 86_399.0, 60),  # the counter began after the earlier check
        (51, 24, 86_400.0, None),
        (51, 24, None, 60),
        (60, 0, 0.5, None),
        (60, 1 / 3600, None, 60),
        (50, -1, 9e6, 10),  # the earlier check is of a clock that was set back
    ],
)
def test_errors_since_an_earlier_check_are_judged_by_the_day(
    before: int, hours: float, since_boot: float | None, new: int | None
) -> None:
    controllers = (MemoryCounter("mc0", 20, 0, since_boot), MemoryCounter("mc1", 40, 0, 1e8))
    errors = HostErrors(NOW, "m", edac=True, controllers=controllers)
    if since_boot is None:
        errors = replace(errors, controllers=tuple(replace(c, seconds=None) for c in controllers))
    counters = {CORRECTED_ERRORS: before, COUNTED_AT: int(NOW - 3600 * hours)}
    found = [f for f in bad(errors, {"m": Past(("r",), counters=counters)}) if f.basis == "history"]
    assert [f.found.partition(" ")[0] for f in found] == ([] if new is None else [str(new)])
    assert all(f.subject == "memory, new errors" for f in found)


def test_a_past_without_a_count_and_a_machine_without_edac_are_not_compared() -> None:
    controllers = (MemoryCounter("mc0", 60, 0, 300 * 86400.0),)
    errors = HostErrors(NOW, "m", edac=True, controllers=controllers)
    assert bad(errors, {"m": Past(("r",), counters={COUNTED_AT: int(NOW)})}) == []
    past = Past(("r",), counters={CORRECTED_ERRORS: -100, COUNTED_AT: int(NOW)})
    assert len(bad(errors, {"m": past})) == 1
    assert bad(replace(errors, controllers=(), unreadable=("mc0: EIO",)), {"m": past}) == []


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
    "{1}[Hardware Error]: event severity: recoverable": "uncorrected",
    "mce: [Hardware Error]: Uncorrected error": "uncorrected",
    "mce: [Hardware Error]: Corrected error, no action required.": "corrected",
    "mce: Fatal machine check: 5": "uncorrected",
    "mce: Fatal local machine check": "uncorrected",
    "Uncorrected hardware errors: events logged": "",
    "edac mc7: 2 ce on DIMM_B1": "corrected",
}


def test_lines_of_the_kernels_log_are_told_apart() -> None:
    uncorrected, corrected = lines_of(LINES)
    assert list(uncorrected) == [line for line, kind in LINES.items() if kind == "uncorrected"]
    assert list(corrected) == [line for line, kind in LINES.items() if kind == "corrected"]


def test_the_newest_twenty_lines_of_each_kind_are_kept() -> None:
    lines = [f"EDAC MC0: {n} {kind} on A1" for n in range(21) for kind in ("UE", "CE")]
    uncorrected, corrected = lines_of(lines)
    assert (len(uncorrected), uncorrected[0], uncorrected[-1]) == (
        20, "EDAC MC0: 1 UE on A1", "EDAC MC0: 20 UE on A1",
    )  # fmt: skip
    assert (len(corrected), corrected[-1]) == (20, "EDAC MC0: 20 CE on A1")


def line_findings(**changes: Any) -> list[tuple[str, str, str, str]]:
    found = bad(replace(GOOD, **changes))
    return [(one.subject, one.verdict, one.found, one.expected) for one in found]


def test_lines_on_uncorrected_errors_fail_and_many_on_corrected_ones_warn_where_nothing_counts_them() -> None:
    lines = tuple(f"line {n}" for n in range(20))
    assert line_findings(uncorrected_lines=lines[:1]) == [
        ("kernel log, uncorrected", "fail", "1 lines since boot, the last: line 0", "none"),
    ]
    assert line_findings(uncorrected_lines=lines)[0][2] == "20 or more lines since boot, the last: line 19"
    assert line_findings(corrected_lines=lines) == []
    uncounted: dict[str, Any] = {"edac": False, "controllers": ()}
    assert line_findings(corrected_lines=lines[:9], **uncounted) == []
    assert line_findings(corrected_lines=lines[:10], **uncounted) == [
        ("kernel log, corrected", "warn", "10 lines since boot, the last: line 9", "fewer than 10"),
    ]


def test_records_of_a_daemon_are_judged_over_thirty_days() -> None:
    def recorded(corrected: int, uncorrected: int) -> list[Finding]:
        return bad(replace(GOOD, recorded={"mcelog": (MemoryCounter("A1", corrected, uncorrected),)}))

    assert recorded(299, 0) == []
    (finding,) = recorded(300, 0)
    assert (finding.verdict, finding.found) == ("warn", "300 corrected errors in 30 days, 10 a day")
    assert recorded(29_999, 0)[0].verdict == "warn"
    assert recorded(30_000, 0)[0].verdict == "fail"
    (finding,) = recorded(0, 2)
    assert (finding.subject, finding.verdict) == ("mcelog: A1", "fail")
    assert (finding.found, finding.source) == ("2 uncorrected errors in 30 days", "mcelog")


def test_a_machine_whose_errors_were_not_read_has_no_answer() -> None:
    assert list(judge(Evidence("passive", "cpu", (), {}), Standards(None))) == []


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


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("[Hardware Error]: Corrected error", "corrected"),
        ("EDAC MC0: 1 CE on A1", "corrected"),
        ("Memory failure: 0x1: recovery", "uncorrected"),
        ("mce: Uncorrected error", "uncorrected"),
        ("usb 1-1: Corrected error", ""),  # another driver's
    ],
)
def test_lines_of_the_kernels_log_on_the_hardware_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: str
) -> None:
    os.mkfifo(tmp_path / "kmsg")
    monkeypatch.setattr(kernel_log, "LOG", str(tmp_path / "kmsg"))
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        os.write(writer, f"2,1,2,-;{message}\n".encode())
        errors = read_errors(tmp_path)
    finally:
        os.close(writer)
    assert errors.log_closed is None
    assert errors.corrected_lines == ((message,) if kind == "corrected" else ())
    assert errors.uncorrected_lines == ((message,) if kind == "uncorrected" else ())


def rasdaemon(root: Path, *rows: tuple[str, int | None, str, str]) -> None:
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


def test_records_of_rasdaemon_are_added_up_by_module(tmp_path: Path) -> None:
    def days_ago(days: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime(time.time() - 86400 * days))

    rasdaemon(
        tmp_path,
        (days_ago(0), 2, "Uncorrected", "A1"), (days_ago(29), 3, "Fatal", "A1"),
        (days_ago(29), 5, "Corrected", "A1"), (days_ago(1), 7, "Deferred", "A1"),
        (days_ago(32), 11, "Corrected", "A1"), (days_ago(0), None, "Fatal", "B1"),
        (days_ago(0), None, "Corrected", "C1"),
    )  # fmt: skip
    errors = read_errors(tmp_path)
    none = (MemoryCounter("B1", 0, 0), MemoryCounter("C1", 0, 0))
    assert errors.recorded == {"rasdaemon": (MemoryCounter("A1", 5, 5), *none)}
    assert errors.daemon_trouble == ()


def test_records_of_a_daemon_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "var/log/mcelog").mkdir(parents=True)
    errors = read_errors(tmp_path)
    assert (errors.recorded, errors.daemon_trouble) == ({}, ("mcelog: /var/log/mcelog: Is a directory",))
    trouble = judged(replace(GOOD, daemon_trouble=errors.daemon_trouble))[-1]
    assert (trouble.found, trouble.advice) == ("mcelog: /var/log/mcelog: Is a directory", "run as root")


def test_a_record_of_mcelog_counts_if_it_is_of_the_last_thirty_days(tmp_path: Path) -> None:
    now = time.time()
    times = (now - 29 * 86400, now - 31 * 86400)
    text = "".join(f"Hardware event\nTIME {int(at)} x\nCorrected error\n" for at in times)
    other = f"Hardware event\nTIME {int(now)} x\nno error\n"
    errors = read_errors(write(tmp_path, {"var/log/mcelog": text + other}))
    assert errors.recorded == {"mcelog": (MemoryCounter("this machine", 1, 0),)}


def test_a_record_of_mcelog_counts_to_the_second_and_has_a_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    times = [int(NOW) - 30 * 86400 - late for late in (0, 1)]
    text = "".join(f"Hardware event\nTIME {at} x\nCorrected error\n" for at in times)
    cut_off = f"TIME {int(NOW)} x\nUncorrected error\n"
    errors = read_errors(write(tmp_path, {"var/log/mcelog": cut_off + text}))
    assert errors.recorded == {"mcelog": (MemoryCounter("this machine", 1, 0),)}


def test_only_the_end_of_a_long_file_of_mcelog_is_read(tmp_path: Path) -> None:
    record = f"Hardware event\nTIME {int(time.time())} x\nUncorrected error\n"
    text = record + " " * (4 << 20) + record.replace("Unc", "C")
    errors = read_errors(write(tmp_path, {"var/log/mcelog": text}))
    assert errors.recorded == {"mcelog": (MemoryCounter("this machine", 1, 0),)}
    whole_file = record + " " * ((4 << 20) - 2 * len(record)) + record
    errors = read_errors(write(tmp_path, {"var/log/mcelog": whole_file}))
    assert errors.recorded == {"mcelog": (MemoryCounter("this machine", 0, 2),)}


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

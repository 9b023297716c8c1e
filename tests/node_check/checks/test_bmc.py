"""The BMC through a program in place of ipmitool, which prints what the real one prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks import bmc
from bench.node_check.checks.bmc import (
    BoardManager,
    Sensor,
    events_of,
    firmware_of,
    judge,
    read_bmc,
    sensors_of,
)
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards
from tests.node_check.checks.answers import answers

INFO = "Device ID                 : 32\nFirmware Revision         : 1.74\nIPMI Version              : 2.0\n"
SENSORS = """\
CPU1 Temp        | 01h | ok  |  3.1 | 45 degrees C
FAN1             | 41h | ok  | 29.1 | 8960 RPM
FAN2             | 42h | ns  | 29.2 | No Reading
12V              | 30h | nc  |  7.1 | 11.10 Volts
P1-DIMMA1 Temp   | b0h | cr  | 32.1 | 96 degrees C
PS1 Status       | c8h | ok  | 10.1 | Presence detected
PS2 Status       | c9h | ok  | 10.2 | Presence detected, Failure detected
a line of another form
"""
EVENTS = """\
   1 | 11/20/2026 | 10:00:00 | Event Logging Disabled #0x51 | Log area reset/cleared | Asserted
   2 | 11/21/2026 | 11:00:00 | Memory #0x87 | Uncorrectable ECC (DIMMA1) | Asserted
   3 | 11/21/2026 | 11:00:01 | Power Supply #0xc9 | Power Supply AC lost | Deasserted
"""


def tool(folder: Path, script: str) -> Path:
    """Write a program in place of ipmitool, and a machine with the BMC's device."""
    (folder / "dev").mkdir()
    (folder / "dev/ipmi0").touch()
    program = folder / "ipmitool"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def answering(folder: Path) -> Path:
    for name, text in (("info", INFO), ("sensors", SENSORS), ("events", EVENTS)):
        (folder / name).write_text(text)
    return tool(
        folder,
        f'echo "$*" >>{folder}/asked; case "$1 $2" in "mc info") cat {folder}/info;; '
        f'"sdr elist") cat {folder}/sensors;; "sel elist") cat {folder}/events;; *) exit 9;; esac',
    )


def judged(manager: BoardManager) -> list[Finding]:
    reading = Reading("bmc", {"bmc": to_json(manager)})
    return answers("bmc", judge(Evidence("quick", "cpu", (), {"bmc": reading}), Standards(None)))


def test_sensors_and_log_are_read_and_the_bad_ones_are_named(tmp_path: Path) -> None:
    manager = read_bmc(tmp_path, str(answering(tmp_path)))
    assert (manager.firmware, len(manager.sensors), len(manager.events)) == ("1.74", 7, 3)
    assert [(f.subject, f.verdict, f.found) for f in judged(manager)] == [
        ("12V", "warn", "11.10 Volts (state nc)"),
        ("P1-DIMMA1 Temp", "fail", "96 degrees C (state cr)"),
        ("PS2 Status", "fail", "Presence detected, Failure detected (state ok)"),
        ("system event log", "warn", "1 grave entries among the newest 3, the last: 11/21/2026 , 11:00:00 , "
         "Memory #0x87 , Uncorrectable ECC (DIMMA1) , Asserted"),
    ]  # fmt: skip


def test_the_bmc_of_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmc, "read_bmc", lambda root: BoardManager(f"below {root}"))
    assert bmc.measure(None, None) == {"bmc": to_json(BoardManager("below /"))}  # type: ignore[arg-type]


def test_only_commands_that_read_are_used(tmp_path: Path) -> None:
    read_bmc(tmp_path, str(answering(tmp_path)))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["mc info", "sdr elist all", "sel elist last 50"]


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("ok", "pass"), ("ns", "pass"), ("nc", "warn"), ("lnc", "warn"), ("unc", "warn"), ("cr", "fail"),
     ("lcr", "fail"), ("ucr", "fail"), ("nr", "fail"), ("lnr", "fail"), ("unr", "fail")],
)  # fmt: skip
def test_each_state_of_a_sensor_has_its_verdict(state: str, verdict: str) -> None:
    (finding,) = judged(BoardManager("1.74", (Sensor("FAN1", state, "8960 RPM"),)))
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    "reading",
    ["Failure detected", "Power Supply AC lost", "Power Supply input lost", "Predictive failure",
     "Redundancy Lost", "presence detected, FAILURE DETECTED"],
)  # fmt: skip
def test_a_part_that_reports_a_failure_fails_whatever_its_state(reading: str) -> None:
    (finding,) = judged(BoardManager("1.74", (Sensor("PS1", "ok", reading),)))
    assert (finding.verdict, finding.found) == ("fail", f"{reading} (state ok)")


def test_a_sensor_without_a_reading_is_told_as_such() -> None:
    (finding,) = judged(BoardManager("1.74", (Sensor("12V", "cr", ""),)))
    assert finding.found == "no reading (state cr)"


@pytest.mark.parametrize(
    "event",
    ["Memory, Uncorrectable ECC, Asserted", "Processor, Machine Check Exception", "Critical Interrupt, NMI",
     "Power Supply, Failure detected", "Power Supply AC lost, Asserted", "Processor CPU1, IERR",
     "Processor CPU1, Thermal Trip", "Temperature, Upper Critical, going high",
     "Fan, Lower Critical - going low", "Voltage, Upper Non-recoverable", "memory, UNCORRECTABLE ecc"],
)  # fmt: skip
def test_a_grave_entry_of_the_log_is_a_warning_until_it_is_deasserted(event: str) -> None:
    fan = Sensor("FAN1", "ok", "8960 RPM")
    events = (event, "Log area reset/cleared")
    (finding,) = judged(BoardManager("1.74", (fan,), events))
    assert (finding.verdict, finding.subject) == ("warn", "system event log")
    assert finding.found == f"1 grave entries among the newest 2, the last: {event}"
    (finding,) = judged(BoardManager("1.74", (fan,), (f"{event} Deasserted",)))
    assert finding.verdict == "pass"


def test_the_last_of_several_grave_entries_is_shown() -> None:
    events = ("Uncorrectable ECC (DIMMA1)", "Uncorrectable ECC (DIMMB1)", "Log area reset/cleared")
    (finding, silent) = judged(BoardManager("1.74", (), events))
    assert finding.found == "2 grave entries among the newest 3, the last: Uncorrectable ECC (DIMMB1)"
    assert (silent.verdict, silent.found, silent.counts) == ("not-run", "the BMC lists no sensors", False)


def test_a_bmc_without_sensors_or_entries_has_no_answer() -> None:
    (finding,) = judged(BoardManager("1.74"))
    assert (finding.verdict, finding.counts) == ("not-run", False)


def test_a_machine_whose_bmc_was_not_asked_has_no_answer() -> None:
    assert list(judge(Evidence("quick", "cpu", (), {}), Standards(None))) == []


def test_at_most_1024_sensors_and_the_newest_50_entries_are_kept() -> None:
    sensors = sensors_of("\n".join(f"FAN{n} | 41h | ok | 29.1 | {n} RPM" for n in range(1025)))
    assert (len(sensors), sensors[-1]) == (1024, Sensor("FAN1023", "ok", "1023 RPM"))
    events = events_of("\n".join(f"{n} | entry {n}" for n in range(51)))
    assert (len(events), events[0], events[-1]) == (50, "entry 1", "entry 50")


def test_lines_without_an_entry_or_with_another_form_are_left_out() -> None:
    assert events_of("SEL has no entries\n 1 | a | b\n") == ("a , b",)
    assert sensors_of("a | b | c | d\na | b | c | d | e | f\na | b | c | d | e\n") == (Sensor("a", "c", "e"),)


@pytest.mark.parametrize(
    ("text", "firmware"),
    [(INFO, "1.74"), ("Firmware Revision:2.0 beta\n", "2.0"), ("  Firmware Revision : 3\n", ""), ("", "")],
)
def test_the_firmware_is_read_from_its_own_line(text: str, firmware: str) -> None:
    assert firmware_of(text) == firmware


@pytest.mark.parametrize("device", ["ipmi0", "ipmi/0", "ipmidev/0"])
def test_the_bmcs_device_has_one_of_three_names(tmp_path: Path, device: str) -> None:
    (tmp_path / "dev" / device).parent.mkdir(parents=True)
    (tmp_path / "dev" / device).touch()
    assert read_bmc(tmp_path, "no-such-ipmitool").why == "/dev/ipmi0 is there, ipmitool is not"


def test_a_bmc_in_order_passes() -> None:
    (finding,) = judged(BoardManager("1.74", (Sensor("FAN1", "ok", "8960 RPM"), Sensor("FAN2", "ns", ""))))
    assert finding.verdict == "pass"
    assert finding.found == "1 of 2 sensors answer, all within their limits, firmware 1.74"
    (finding,) = judged(BoardManager("", (Sensor("FAN1", "ok", "8960 RPM"),)))
    assert finding.found == "1 of 1 sensors answer, all within their limits"


def test_a_machine_without_a_bmc_cannot_answer(tmp_path: Path) -> None:
    (finding,) = judged(read_bmc(tmp_path))
    assert (finding.verdict, finding.counts) == ("not-run", False)
    assert finding.found == "there is no /dev/ipmi0: no BMC, or its driver is not loaded"
    assert finding.advice == "modprobe ipmi_devintf and ipmi_si (root), if the board has a BMC"


def test_a_machine_without_ipmitool_says_so(tmp_path: Path) -> None:
    tool(tmp_path, "exit 0")
    (finding,) = judged(read_bmc(tmp_path, "no-such-ipmitool"))
    assert (finding.counts, finding.advice) == (False, "install ipmitool")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Could not open device at /dev/ipmi0' >&2; exit 1", "ipmitool mc info: Could not open device"),
        ("exit 7", "ipmitool mc info: exit code 7"),
        ("exec sleep 60", "ipmitool mc info took more than 0.2 s"),
    ],
)
def test_a_bmc_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(bmc, "ANSWER_SECONDS", 0.2)
    manager = read_bmc(tmp_path, str(tool(tmp_path, script)))
    assert str(manager.why).startswith(f"the BMC gave no answer: {why}")
    assert manager.advice.startswith("ask again")
    assert (manager.firmware, manager.sensors, manager.events) == ("", (), ())


def test_three_commands_that_do_not_answer_end_within_the_time_of_the_check() -> None:
    assert 30 <= 3 * bmc.ANSWER_SECONDS < bmc.CHECK.limit_seconds


def test_ipmitool_is_asked_in_english_and_may_print_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    name = "printf 'Firmware Revision : %s\\377\\n' $LC_ALL"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool(tmp_path, name)
    assert read_bmc(tmp_path) == BoardManager("C\ufffd")
    (tmp_path / "ipmitool").write_text("#!/bin/sh\nprintf 'no\\377' >&2; exit 1\n")
    assert read_bmc(tmp_path).why == "the BMC gave no answer: ipmitool mc info: no\ufffd"


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[None]:
    """Put text into the standard input of this process, as a user who types ahead."""
    (tmp_path / "typed").write_text("typed\n")
    own = os.dup(0)
    with (tmp_path / "typed").open("rb") as file:
        os.dup2(file.fileno(), 0)
    yield
    os.dup2(own, 0)
    os.close(own)


@pytest.mark.usefixtures("typed")
def test_ipmitool_does_not_read_what_the_user_types(tmp_path: Path) -> None:
    program = tool(tmp_path, "printf 'Firmware Revision : 1.74%s\\n' $(cat)")
    assert read_bmc(tmp_path, str(program)) == BoardManager("1.74")


def test_a_device_that_is_closed_to_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = answering(tmp_path)
    closed = tmp_path / "dev/ipmi0"  # root may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed or mode != os.R_OK | os.W_OK)
    manager = read_bmc(tmp_path, str(program))
    assert manager.why == f"{tmp_path}/dev/ipmi0 is closed to this user"
    assert manager.advice == f"run as root, or let this user's group read and write {tmp_path}/dev/ipmi0"
    assert not (tmp_path / "asked").exists()

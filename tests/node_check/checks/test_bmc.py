"""The BMC through a program in place of ipmitool, which prints what the real one prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.base.strict_json import to_json
from bench.node_check.checks import bmc
from bench.node_check.checks.bmc import BoardManager, Sensor, judge, read_bmc
from bench.node_check.judging.evidence import Evidence, Reading
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Standards

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
    return list(judge(Evidence("quick", "cpu", (), {"bmc": reading}), Standards(None)))


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


def test_only_commands_that_read_are_used(tmp_path: Path) -> None:
    read_bmc(tmp_path, str(answering(tmp_path)))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["mc info", "sdr elist all", "sel elist last 50"]


def test_a_bmc_in_order_passes() -> None:
    (finding,) = judged(BoardManager("1.74", (Sensor("FAN1", "ok", "8960 RPM"), Sensor("FAN2", "ns", ""))))
    assert finding.verdict == "pass"
    assert finding.found == "1 of 2 sensors answer, all within their limits, firmware 1.74"


def test_a_machine_without_a_bmc_cannot_answer(tmp_path: Path) -> None:
    (finding,) = judged(read_bmc(tmp_path))
    assert (finding.verdict, finding.counts) == ("not-run", False)
    assert "there is no /dev/ipmi0" in finding.found


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
    assert why in str(manager.why)


def test_a_device_that_is_closed_to_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = answering(tmp_path)
    closed = tmp_path / "dev/ipmi0"  # root may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    manager = read_bmc(tmp_path, str(program))
    assert manager.why == f"{tmp_path}/dev/ipmi0 is closed to this user"
    assert not (tmp_path / "asked").exists()

"""Ask the board's management controller (BMC) for its sensors, power supplies, fans and newest log entries.

Runs `ipmitool`, which needs /dev/ipmi0 and usually root, with commands that only read. A machine without
them, such as a virtual one, cannot answer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import short_line
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, Verdict
from bench.node_check.judging.standards import Standards

DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
SOURCE = "IPMI 2.0: sensor thresholds and the system event log, through ipmitool"
ANSWER_SECONDS = 15.0  # of one command; a BMC with many sensors takes some seconds
MOST_SENSORS, MOST_EVENTS = 1024, 50
# ipmitool's words for the state of a sensor with thresholds: non-critical, critical, non-recoverable.
STATES: dict[str, Verdict] = {"nc": "warn", "lnc": "warn", "unc": "warn", "cr": "fail", "lcr": "fail",
                              "ucr": "fail", "nr": "fail", "lnr": "fail", "unr": "fail"}  # fmt: skip
_BROKEN = re.compile(r"Failure detected|AC lost|input lost|Predictive failure|Redundancy Lost", re.IGNORECASE)
_GRAVE = re.compile(
    r"Uncorrectable|Machine Check|Critical Interrupt|Failure detected|AC lost|Processor.*(IERR|Thermal Trip)|"
    r"Critical.*going (high|low)|Non-recoverable",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Sensor:
    """One sensor, in ipmitool's words."""

    name: str  # Fan1A, PS1 Status
    state: str  # ok, ns, nc, cr, nr
    reading: str  # 5880 RPM; Presence detected, Failure detected


@dataclass(frozen=True, slots=True)
class BoardManager:
    """The answers of the BMC, or the reason why there are none."""

    firmware: str = ""
    sensors: tuple[Sensor, ...] = ()
    events: tuple[str, ...] = ()  # the newest entries of its log, the oldest first
    why: str | None = None  # why there is no answer
    advice: str = ""


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the BMC's sensors and newest log entries, or why it gives none."""
    return {"bmc": to_json(read_bmc(Path("/")))}


def read_bmc(root: Path, tool: str = "ipmitool") -> BoardManager:
    """Ask the BMC of the machine below `root`."""
    device = next((root / name for name in DEVICES if (root / name).exists()), None)
    program = shutil.which(tool)
    if device is None:
        advice = "modprobe ipmi_devintf and ipmi_si (root), if the board has a BMC"
        return BoardManager(why="there is no /dev/ipmi0: no BMC, or its driver is not loaded", advice=advice)
    if program is None:
        return BoardManager(why="/dev/ipmi0 is there, ipmitool is not", advice="install ipmitool")
    if not os.access(device, os.R_OK | os.W_OK):
        advice = f"run as root, or let this user's group read and write {device}"
        return BoardManager(why=f"{device} is closed to this user", advice=advice)
    try:
        info = _asked(program, "mc", "info")
        sensors = _asked(program, "sdr", "elist", "all")
        events = _asked(program, "sel", "elist", "last", str(MOST_EVENTS))
    except OSError as error:
        advice = "ask again; a BMC that does not answer is reset by ipmitool mc reset cold (root)"
        return BoardManager(why=f"the BMC gave no answer: {error}", advice=advice)
    return BoardManager(firmware_of(info), sensors_of(sensors), events_of(events))


def _asked(program: str, *words: str) -> str:
    """Return the output of a command of ipmitool; OSError if it fails or does not end."""
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"ipmitool {' '.join(words)} took more than {ANSWER_SECONDS:g} s") from None
    if done.returncode != 0:
        said = short_line(done.stderr.decode("utf-8", "replace")) or f"exit code {done.returncode}"
        raise OSError(f"ipmitool {' '.join(words)}: {said}")
    return done.stdout.decode("utf-8", "replace")


def firmware_of(text: str) -> str:
    """Read the firmware's version from the output of `ipmitool mc info`; empty if it is not there."""
    match = re.search(r"^Firmware Revision\s*:\s*(\S+)", text, re.MULTILINE)
    return short_line(match[1]) if match else ""


def sensors_of(text: str) -> tuple[Sensor, ...]:
    """Read the lines of `ipmitool sdr elist`: name | number | state | entity | reading."""
    rows = ([short_line(part) for part in line.split("|")] for line in text.splitlines())
    found = [Sensor(row[0], row[2], row[4]) for row in rows if len(row) == 5]
    return tuple(found[:MOST_SENSORS])


def events_of(text: str) -> tuple[str, ...]:
    """Read the lines of `ipmitool sel elist` without their numbers."""
    lines = [short_line(line.partition("|")[2].replace("|", ",")) for line in text.splitlines()]
    return tuple(line for line in lines if line)[-MOST_EVENTS:]


def manager_of(evidence: Evidence) -> BoardManager | None:
    """Decode the answers of the BMC; None if it was not asked."""
    data = evidence.data("bmc")
    return from_json(BoardManager, data["bmc"]) if data else None


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail broken parts and critical sensors; warn of non-critical ones and of grave entries of the log."""
    manager = manager_of(evidence)
    if manager is None:
        return
    if manager.why is not None:
        yield Question("bmc").unread(manager.why, counts=False, advice=manager.advice)
        return
    bad = [*_sensors(manager.sensors), *_events(manager.events)]
    yield from bad
    if not manager.sensors:
        yield Question("bmc").unread("the BMC lists no sensors", counts=False)
    elif not bad:
        firmware = f", firmware {manager.firmware}" if manager.firmware else ""
        answers = sum(sensor.state == "ok" for sensor in manager.sensors)
        yield Question("bmc").judged(
            "pass",
            f"{answers} of {len(manager.sensors)} sensors answer, all within their limits{firmware}",
            expected="every sensor within its limits, power supplies and fans without failure",
            source=SOURCE,
        )


def _sensors(sensors: Sequence[Sensor]) -> Iterator[Finding]:
    for sensor in sensors:
        broken = _BROKEN.search(sensor.reading)
        verdict = "fail" if broken else STATES.get(sensor.state)
        if verdict is not None:
            yield Question("bmc", sensor.name).judged(
                verdict,
                f"{sensor.reading or 'no reading'} (state {sensor.state})",
                expected="within its limits, without failure",
                source=SOURCE,
                advice="look at the part that the sensor belongs to: power supply, fan, airflow, voltage",
            )


def _events(events: Sequence[str]) -> Iterator[Finding]:
    """Warn of grave entries of the log. Their age is unknown, because many BMCs have a wrong clock."""
    grave = [event for event in events if _GRAVE.search(event) and "Deasserted" not in event]
    if grave:
        yield Question("bmc", "system event log").judged(
            "warn",
            f"{len(grave)} grave entries among the newest {len(events)}, the last: {grave[-1]}",
            expected="no grave entries",
            source=SOURCE,
            advice="read it with ipmitool sel elist; ipmitool sel clear (root) empties it after a repair",
        )


CHECK = Check(
    "bmc",
    "are fans, power supplies, temperatures and the board's log in order?",
    judge,
    measure,
    torch=False,
    limit_seconds=50,
    blames="node",
    has_older_bundles=True,
)

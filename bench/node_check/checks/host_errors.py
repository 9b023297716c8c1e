"""Check for errors of the host's memory and processors that the kernel and its daemons have counted.

The kernel's EDAC drivers count corrected and uncorrected memory errors by controller and module
(Documentation/admin-guide/RAS), /proc/interrupts counts machine checks by processor, and both are in the
kernel's log. rasdaemon and mcelog keep their own records. Everything is only read, most of it without root.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.base.kernel_log import kernel_messages, why_closed
from bench.base.strict_json import from_json, to_json
from bench.base.sysfs import first_line, machine_digest, short_line, whole
from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import CORRECTED_ERRORS, COUNTED_AT, Past, Standards

ROOT = Path("/")
EDAC = Path("sys/devices/system/edac/mc")
RASDAEMON, MCELOG = Path("var/lib/rasdaemon/ras-mc_event.db"), Path("var/log/mcelog")
SOURCE = "Linux: EDAC, Documentation/admin-guide/RAS"
DAY = 86_400.0
DAEMON_DAYS = 30  # older records of a daemon may be of a module that was replaced since
# Corrected errors of one module or controller in a day. The first is mcelog's default; the second is bench's:
# each corrected error can stop a processor for a moment, which slows the step of every GPU.
WARN_A_DAY, FAIL_A_DAY = 10, 1000
CORRECTED_SOURCE = "mcelog.conf: ce-error-threshold = 10 / 24h"
MOST_MODULES, MOST_LINES = 512, 20
MOST_MCELOG_BYTES = 4 << 20  # at the end of its file
_WORDS = (b"Hardware Error", b"EDAC MC", b"Memory failure:", b"mce:")
_UNCORRECTED = re.compile(
    r"EDAC MC\d+: \d+ UE\b|Uncorrected|Memory failure: 0x|event severity: (recoverable|fatal)|"
    r"Fatal (local )?machine check|Deferred error",
    re.IGNORECASE,
)
_CORRECTED = re.compile(r"EDAC MC\d+: \d+ CE\b|Corrected error|event severity: corrected", re.IGNORECASE)
_INTERRUPTS = {
    "MCE": "machine check exceptions",
    "DFR": "deferred errors",
    "THR": "corrected error thresholds",
}
REPLACE = "drain the node; replace the named module, or move it to another slot to see which of both is bad"


@dataclass(frozen=True, slots=True)
class MemoryCounter:
    """Memory errors of a controller or module: counted by EDAC, or recorded by a daemon."""

    name: str
    corrected: int
    uncorrected: int
    seconds: float | None = None  # since the counter began; None: unknown


@dataclass(frozen=True, slots=True)
class HostErrors:
    """All errors of memory and processors that this machine reports."""

    at: float  # unix time
    machine: str = ""  # its digest
    edac: bool = False  # a driver counts errors
    controllers: tuple[MemoryCounter, ...] = ()
    modules: tuple[MemoryCounter, ...] = ()
    unreadable: tuple[str, ...] = ()  # files of EDAC, and why
    interrupts: Mapping[str, int] | None = None  # by the kernel's short name
    uncorrected_lines: tuple[str, ...] = ()  # of the kernel's log
    corrected_lines: tuple[str, ...] = ()
    log_closed: str | None = None
    recorded: Mapping[str, tuple[MemoryCounter, ...]] | None = None  # by daemon, of the last 30 days
    daemon_trouble: tuple[str, ...] = ()

    @property
    def corrected(self) -> int | None:
        """All corrected errors that EDAC has counted; None without EDAC."""
        return sum(one.corrected for one in self.controllers) if self.controllers else None


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Return the counters of the kernel and of its daemons, and the machine's digest for its history."""
    return {"errors": to_json(read_errors(ROOT))}


def read_errors(root: Path) -> HostErrors:
    """Read the error counters of the machine below `root`."""
    controllers, modules, unreadable = _read_edac(root / EDAC)
    uncorrected, corrected, closed = _read_log()
    recorded: dict[str, tuple[MemoryCounter, ...]] = {}
    trouble = []
    for name, read, path in (("rasdaemon", _rasdaemon, RASDAEMON), ("mcelog", _mcelog, MCELOG)):
        if (root / path).exists():
            try:
                recorded[name] = read(root / path)
            except (OSError, ValueError) as error:
                trouble.append(short_line(f"{name}: /{path}: {getattr(error, 'strerror', None) or error}"))
    return HostErrors(
        at=time.time(),
        machine=machine_digest(root),
        edac=bool(controllers or unreadable),
        controllers=controllers,
        modules=modules,
        unreadable=unreadable,
        interrupts=_read_interrupts(root / "proc" / "interrupts"),
        uncorrected_lines=uncorrected,
        corrected_lines=corrected,
        log_closed=closed,
        recorded=recorded,
        daemon_trouble=tuple(trouble),
    )


def _read_edac(
    folder: Path,
) -> tuple[tuple[MemoryCounter, ...], tuple[MemoryCounter, ...], tuple[str, ...]]:
    """Return the controllers, their modules, and the files that cannot be read."""
    controllers, modules, unreadable = [], [], []
    for controller in sorted(folder.glob("mc[0-9]*"))[:MOST_MODULES]:
        seconds = whole(first_line(controller / "seconds_since_reset"))
        of_all = _counter(controller, "", controller.name, seconds)
        if of_all is None:
            unreadable.append(f"{controller.name}: its counters cannot be read")
            continue
        controllers.append(of_all)
        for module in sorted((*controller.glob("dimm[0-9]*"), *controller.glob("rank[0-9]*"))):
            label = first_line(module / "dimm_label") or module.name
            if counter := _counter(module, "dimm_", f"{controller.name} {label}", seconds):
                modules.append(counter)
    return tuple(controllers), tuple(modules[:MOST_MODULES]), tuple(unreadable)


def _counter(folder: Path, prefix: str, name: str, seconds: int | None) -> MemoryCounter | None:
    counts = [whole(first_line(folder / f"{prefix}{kind}_count")) for kind in ("ce", "ue")]
    if counts[0] is None or counts[1] is None:
        return None
    return MemoryCounter(name, counts[0], counts[1], None if seconds is None else float(seconds))


def _read_interrupts(path: Path) -> dict[str, int] | None:
    """Add up the processors' counts of machine checks; None if /proc/interrupts cannot be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if name.strip() in _INTERRUPTS:
            counts = [whole(word) for word in rest.split()]
            found[name.strip()] = sum(count for count in counts if count is not None)
    return found


def _read_log() -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Return the newest lines on uncorrected and on corrected errors, and why the log is closed."""
    try:
        return *lines_of(kernel_messages(_WORDS)), None
    except (OSError, EOFError) as error:
        return (), (), why_closed(error)


def lines_of(messages: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Select the newest messages of the kernel about uncorrected errors, and about corrected ones."""
    uncorrected, corrected = deque[str](maxlen=MOST_LINES), deque[str](maxlen=MOST_LINES)
    for message in messages:
        if _UNCORRECTED.search(message) and "events logged" not in message:
            uncorrected.append(short_line(message))
        elif _CORRECTED.search(message):
            corrected.append(short_line(message))
    return tuple(uncorrected), tuple(corrected)


def _rasdaemon(path: Path) -> tuple[MemoryCounter, ...]:
    """Add up the memory errors of the last days by module. ValueError for a database of another form."""
    import sqlite3

    since = time.strftime("%Y-%m-%d", time.gmtime(time.time() - DAEMON_DAYS * DAY))
    query = (
        "SELECT label, sum(CASE WHEN err_type = 'Corrected' THEN err_count ELSE 0 END), "
        "sum(CASE WHEN err_type IN ('Uncorrected', 'Fatal') THEN err_count ELSE 0 END) "
        f"FROM mc_event WHERE timestamp >= ? GROUP BY label LIMIT {MOST_MODULES}"
    )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
            rows = database.execute(query, (since,)).fetchall()
    except sqlite3.Error as error:
        raise ValueError(str(error)) from None
    return tuple(MemoryCounter(short_line(str(label)), int(ce or 0), int(ue or 0)) for label, ce, ue in rows)


def _mcelog(path: Path) -> tuple[MemoryCounter, ...]:
    """Count the corrected and uncorrected errors of the last days in mcelog's file.

    A record begins with "Hardware event", and its line "TIME 1700000000 ..." says when.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_MCELOG_BYTES))
        text = file.read(MOST_MCELOG_BYTES).decode("utf-8", "replace")
    since, corrected, uncorrected = time.time() - DAEMON_DAYS * DAY, 0, 0
    for record in text.split("Hardware event")[1:]:
        when = re.search(r"^TIME (\d{1,12})\b", record, re.MULTILINE)
        if when is None or int(when[1]) < since:
            continue
        if re.search(r"Uncorrected error", record):
            uncorrected += 1
        elif re.search(r"Corrected error", record):
            corrected += 1
    return (MemoryCounter("this machine", corrected, uncorrected),)


def errors_of(evidence: Evidence) -> HostErrors | None:
    """Decode the error counters; None if they were not read."""
    data = evidence.data("host-errors")
    return from_json(HostErrors, data["errors"]) if data else None


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail any uncorrected error; judge corrected ones by how many there are a day. Name closed sources."""
    errors = errors_of(evidence)
    if errors is None:
        return
    bad = [
        *_memory(errors),
        *_new_errors(errors, standards.history.get(evidence.machine)),
        *_processors(errors),
        *_logged(errors),
        *_recorded(errors),
    ]
    yield from bad
    if not errors.edac:
        yield Question("host-errors", "memory").unread(
            "no EDAC driver counts errors of this machine's memory",
            counts=False,
            advice="load the EDAC driver of the processor; a virtual machine and a container have none",
        )
    elif not errors.controllers:
        yield Question("host-errors", "memory").unread("; ".join(errors.unreadable), counts=False)
    elif not bad:
        yield _healthy(errors)
    if errors.log_closed is not None:
        yield Question("host-errors", "kernel log").unread(
            f"the kernel's log is closed ({errors.log_closed}): machine checks in it are not known",
            counts=False,
            advice="run as root, or set kernel.dmesg_restrict=0",
        )
    for trouble in errors.daemon_trouble:
        yield Question("host-errors", "records").unread(trouble, counts=False, advice="run as root")


def _healthy(errors: HostErrors) -> Finding:
    corrected = sum(controller.corrected for controller in errors.controllers)
    return Question("host-errors", "memory").judged(
        "pass",
        f"{len(errors.controllers)} controllers, none uncorrected, {corrected} corrected since boot",
        expected=f"none uncorrected, under {WARN_A_DAY} corrected a day",
        source=SOURCE,
    )


def _memory(errors: HostErrors) -> Iterator[Finding]:
    """Judge each module, and each controller whose errors no module accounts for."""
    by_module = [sum(m.uncorrected for m in errors.modules), sum(m.corrected for m in errors.modules)]
    in_all = [sum(c.uncorrected for c in errors.controllers), sum(c.corrected for c in errors.controllers)]
    counters = errors.modules if by_module == in_all else (*errors.modules, *errors.controllers)
    for counter in counters:
        question = Question("host-errors", f"memory {counter.name}")
        if counter.uncorrected:
            found = f"{counter.uncorrected} uncorrected errors since boot, {counter.corrected} corrected"
            yield _uncorrected(question, found, SOURCE)
        elif counter.seconds is not None:
            a_day = counter.corrected / max(1.0, counter.seconds / DAY)
            yield from _many(question, a_day, f"{counter.corrected} corrected errors since boot")


def _uncorrected(question: Question, found: str, source: str) -> Finding:
    """Report uncorrected errors: a single one fails the check."""
    return question.judged("fail", found, expected="none uncorrected", source=source, advice=REPLACE)


def _many(question: Question, a_day: float, found: str) -> Iterator[Finding]:
    """Report corrected errors if there are too many a day."""
    if a_day >= WARN_A_DAY:
        yield question.judged(
            verdict_of(fail=a_day >= FAIL_A_DAY, warn=True),
            f"{found}, {a_day:.0f} a day",
            expected=f"under {WARN_A_DAY} a day; {FAIL_A_DAY} fail",
            source=CORRECTED_SOURCE,
            advice=REPLACE,
        )


def _new_errors(errors: HostErrors, past: Past | None) -> Iterator[Finding]:
    """Judge the errors since an earlier check of this machine, since a mean since boot could hide them."""
    if past is None or errors.corrected is None or CORRECTED_ERRORS not in past.counters:
        return
    seconds = max(0.0, errors.at - past.counters[COUNTED_AT])
    since_reset = min((c.seconds for c in errors.controllers if c.seconds is not None), default=0.0)
    before = past.counters[CORRECTED_ERRORS] if since_reset >= seconds else 0  # else it began again
    new = errors.corrected - before
    days = max(1.0, seconds / DAY)
    question = Question("host-errors", "memory, new errors")
    for finding in _many(question, new / days, f"{new} corrected errors in {seconds / 3600:.1f} h"):
        yield replace(finding, basis="history")


def _processors(errors: HostErrors) -> Iterator[Finding]:
    counts = errors.interrupts or {}
    for name in ("MCE", "DFR"):
        if counts.get(name):
            yield Question("host-errors", "processors").judged(
                "fail",
                f"{counts[name]} {_INTERRUPTS[name]} since boot",
                expected="none: each of them reports an error that was not corrected",
                source=f"Linux: /proc/interrupts, {name}",
                advice="read the kernel's log around it with rasdaemon or mcelog; drain the node",
            )


def _logged(errors: HostErrors) -> Iterator[Finding]:
    """Report the kernel's lines on uncorrected errors; those on corrected ones only if EDAC counts none."""
    lines = errors.uncorrected_lines
    if lines:
        yield _of_lines("uncorrected", lines, "none")
    few = errors.edac or len(errors.corrected_lines) < WARN_A_DAY
    if not few:
        yield _of_lines("corrected", errors.corrected_lines, f"fewer than {WARN_A_DAY}")


def _of_lines(kind: str, lines: tuple[str, ...], expected: str) -> Finding:
    count = f"{len(lines)} or more" if len(lines) == MOST_LINES else f"{len(lines)}"
    return Question("host-errors", f"kernel log, {kind}").judged(
        verdict_of(fail=kind == "uncorrected", warn=True),
        f"{count} lines since boot, the last: {lines[-1]}",
        expected=expected,
        source="Linux: mce, EDAC and APEI in the kernel's log",
        advice=REPLACE,
    )


def _recorded(errors: HostErrors) -> Iterator[Finding]:
    for daemon, counters in (errors.recorded or {}).items():
        for counter in counters:
            question = Question("host-errors", f"{daemon}: {counter.name}")
            if counter.uncorrected:
                found = f"{counter.uncorrected} uncorrected errors in {DAEMON_DAYS} days"
                yield _uncorrected(question, found, daemon)
            else:
                in_all = f"{counter.corrected} corrected errors in {DAEMON_DAYS} days"
                yield from _many(question, counter.corrected / DAEMON_DAYS, in_all)


CHECK = Check(
    "host-errors",
    "have the host's memory and processors reported errors?",
    judge,
    measure,
    torch=False,
    limit_seconds=15,
    blames="node",
    passive=True,
    has_older_bundles=True,
)

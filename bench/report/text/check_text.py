"""Format a node check: verdicts, what is wrong, what to do, stragglers; and a line for monitoring. Pure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tabulate import tabulate

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import VERDICTS, Finding, Verdict, quantity, worst
from bench.node_check.judging.standards import profile_for
from bench.report.text.terminal import LEAST_COLUMNS, columns, wrapped

WORDS: dict[Verdict, str] = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "not-run": "NOT-RUN"}
MOST_FIGURES = 6  # in a row of the table; more are summed up
MOST_COLUMNS = 108  # width of the table
LAG_HEADS = ("median", "spread", "slowest", "")
NAME_COLUMNS = 24  # width of the columns with checks' names and verdicts
NRPE_BYTES = 1023  # the longest line that every version of Nagios' remote agent passes on
NAGIOS_TEXT_BYTES = 500  # of NRPE_BYTES; the rest is for figures
NAGIOS_UNITS = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s")}  # scale and unit; units have no digits


@dataclass(frozen=True, slots=True)
class Lag:
    """The slowest GPU of one figure."""

    figure: str
    unit: str
    median: float
    slowest: float
    gpu: int
    spread_percent: float  # between the best and the worst

    @property
    def under_percent(self) -> float:
        return 100 * (1 - self.slowest / self.median)

    @property
    def cells(self) -> tuple[str, ...]:
        """The figure, the texts below LAG_HEADS, and how far it is under the median."""
        usual, slowest = quantity(self.median, self.unit), quantity(self.slowest, self.unit)
        spread, under = f"{self.spread_percent:.1f}%", f"{self.under_percent:.1f}%"
        return self.figure, usual, spread, f"GPU {self.gpu}", slowest, under


def text(results: CheckResults) -> str:
    blocks = [wrapped([_head(results)], ""), _table(results)]
    if problems := list(_problems(results.findings)):
        blocks.append(wrapped(problems, " " * 9))
    if lags := stragglers(results.findings):
        blocks.append(_lag_table(lags))
    if lines := not_possible(results.findings):
        head = "not possible here, which counts neither for nor against the node:"
        blocks.append(wrapped([head, *(f"  {line}" for line in lines)], " " * 4))
    return "\n\n".join([*blocks, wrapped([verdict_line(results)], "")])


def node_text(results: CheckResults) -> str:
    gpus = results.node.gpus
    names = sorted({gpu.name for gpu in gpus})
    what = f"{len(gpus)} x {' and '.join(names)}, driver {results.node.driver}" if gpus else results.node.cpu
    return f"SIMULATED {what}" if results.simulated else what


def _head(results: CheckResults) -> str:
    profile = f"profile {results.profile.name}" if results.profile else "no profile of this device"
    return f"{node_text(results)}   level {results.level}   {profile}   run {results.run.id}"


def by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.check, []).append(finding)
    return groups


def verdict_of(findings: Sequence[Finding]) -> str:
    """Return the most serious verdict of one check's findings; "-" if none of them counts."""
    counted = {f.verdict for f in findings if f.counts}
    return next((WORDS[verdict] for verdict in VERDICTS if verdict in counted), "-")


def _table(results: CheckResults) -> str:
    rows = []
    for check, findings in by_check(results.findings).items():
        most_serious = worst(findings)
        assert most_serious is not None
        rows.append((check, verdict_of(findings), _summary(most_serious, findings)))
    widest = max(LEAST_COLUMNS, min(columns() or MOST_COLUMNS, MOST_COLUMNS) - NAME_COLUMNS)
    widths = [None, None, widest]
    return tabulate(rows, ("check", "verdict", ""), disable_numparse=True, maxcolwidths=widths)


def _summary(finding: Finding, findings: Sequence[Finding]) -> str:
    """Summarise a check that passes by its figures, any other by its most serious finding."""
    figures = [f for f in findings if f.figure and f.basis == "reference" and f.value is not None]
    if finding.verdict != "pass" or not figures:
        return f"{finding.subject}: {finding.found}"
    parts = []
    names = dict.fromkeys(f.figure for f in figures)
    if len(names) > MOST_FIGURES:
        values = [f.value for f in figures if f.value]
        return f"{len(names)} figures, {_median_text(values, figures[0].unit or '')}"
    for name in names:
        values = [f.value for f in figures if f.figure == name and f.value is not None]
        unit = next(f.unit for f in figures if f.figure == name) or ""
        parts.append(f"{name} {_median_text(values, unit)}")
    return ", ".join(parts)


def _median_text(values: Sequence[float], unit: str) -> str:
    spread = f" ±{100 * (max(values) - min(values)) / 2 / median(values):.1f}%" if len(values) > 1 else ""
    return f"{quantity(median(values), unit)}{spread}"


def _problems(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield findings that did not pass, the most serious first; join equal ones, give each advice once."""
    advice = ""
    for verdict in ("fail", "not-run", "warn"):
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for f in findings:
            if f.verdict == verdict and f.counts:
                # The same reason may prevent several checks.
                key = (f.found,) if verdict == "not-run" else (f.check, _without_gpu(f), f.found, f.expected)
                groups.setdefault(key, []).append(f)
        for group in groups.values():
            f = group[0]
            group_advice = next((g.advice for g in group if g.advice), "")
            if advice and group_advice != advice:
                yield f"         {advice}"
            advice = group_advice
            yield f"{WORDS[f.verdict]:<8} {_subjects(group)}: {f.found}"
            if verdict != "not-run":
                yield f"         expected {f.expected} ({f.source})"
    if advice:
        yield f"         {advice}"


def _without_gpu(finding: Finding) -> str:
    """Return the subject without its GPU: " persistence" for "GPU 3 persistence"."""
    return finding.subject.removeprefix(f"GPU {finding.gpu}")


def _subjects(group: Sequence[Finding]) -> str:
    f, checks = group[0], dict.fromkeys(f.check for f in group)
    if len(checks) > 1:
        return ", ".join(checks)
    if len(group) == 1 or f.gpu is None:
        return f"{f.check}: {f.subject}"
    return f"{f.check}: GPUs {', '.join(str(g.gpu) for g in group)}{_without_gpu(f)}"


def not_possible(findings: Sequence[Finding]) -> list[str]:
    """List the reasons why something cannot be checked on this node, each with its checks."""
    checks: dict[str, dict[str, None]] = {}
    for f in findings:
        if f.verdict == "not-run" and not f.counts:
            reason = f.found + (f" ({f.advice})" if f.advice else "")
            if f.basis == "reference":
                reason = f"no reference figure ({f.source})"
            checks.setdefault(reason, {})[f.check] = None
    return [f"{', '.join(names)}: {reason}" for reason, names in checks.items()]


def stragglers(findings: Sequence[Finding]) -> list[Lag]:
    """Find the slowest GPU for each figure of several GPUs; the one furthest under the median first."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for f in findings:
        if f.figure and f.gpu is not None and f.value is not None and f.unit:
            values.setdefault((f.figure, f.unit), {})[f.gpu] = f.value
    lags = []
    for (figure, unit), by_gpu in values.items():
        if len(by_gpu) > 1:
            middle = median(by_gpu.values())
            gpu = min(by_gpu, key=lambda index: by_gpu[index])
            spread = 100 * (max(by_gpu.values()) - by_gpu[gpu]) / middle
            lags.append(Lag(figure, unit, middle, by_gpu[gpu], gpu, spread))
    return sorted(lags, key=lambda lag: -lag.under_percent)


def _lag_table(lags: Sequence[Lag]) -> str:
    rows = [lag.cells for lag in lags]
    headers = ("stragglers", *LAG_HEADS, "under the median")
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 5))
    if len(table.partition("\n")[0]) <= (columns() or sys.maxsize):
        return table
    lines = (
        f"  {name}: {gpu}, {slowest}, {under} under {usual}" for name, usual, _, gpu, slowest, under in rows
    )
    return wrapped(["stragglers, and the median that they are under:", *lines], " " * 4)


def counted_text(findings: Sequence[Finding]) -> str:
    """Count the checks with each verdict, in words."""
    checks = by_check(findings)
    counts = Counter(map(verdict_of, checks.values()))
    names = {WORDS[verdict]: WORDS[verdict].lower() for verdict in VERDICTS} | {"-": "not possible here"}
    text = ", ".join(f"{counts[word]} {name}" for word, name in names.items() if counts[word])
    return f"{text}, of {len(checks)} checks"


def verdict_line(results: CheckResults) -> str:
    line = f"{WORDS[results.verdict].upper()}   {counted_text(results.findings)}"
    return f"{line}   SIMULATED: not a real node" if results.simulated else line


def nagios_line(results: CheckResults) -> str:
    """Format one line as Nagios plug-ins do: STATE - text | figures; the most serious finding comes first.

    The line fits into NRPE_BYTES. A figure is the lowest of the node's GPUs; the bundle has each GPU's.
    """
    state = {"pass": "OK", "warn": "WARNING", "fail": "CRITICAL", "not-run": "UNKNOWN"}[results.verdict]
    problem = worst([f for f in results.findings if f.counts])
    finding = f"{problem.line}; " if problem and results.verdict != "pass" else ""
    text = f"BENCH {state} - {finding}{counted_text(results.findings)}; {node_text(results)}"
    line = _nagios_text(text)
    separator = " | "
    for figure in _lowest_figures(results):
        if len(f"{line}{separator}{figure}".encode()) > NRPE_BYTES:
            break
        line, separator = f"{line}{separator}{figure}", " "
    return line


def _lowest_figures(results: CheckResults) -> Iterator[str]:
    """Yield each figure of the GPUs, by the lowest of them, as 'label'=value[unit];[warn:];[critical:]."""
    profile = profile_for(results.node.gpus)
    lowest: dict[str, Finding] = {}
    for f in results.findings:
        if f.gpu is not None and f.figure and f.value is not None:
            lowest[f.figure] = min(lowest.get(f.figure, f), f, key=lambda one: one.value or 0.0)
    for name, f in lowest.items():
        scale, unit = NAGIOS_UNITS.get(f.unit or "", (1.0, f.unit or ""))
        limits = ""
        if profile and (reference := profile.figures.get(name)):
            for percent in (reference.warn_percent, reference.fail_percent):
                limits += f";{reference.value * (1 - percent / 100) / scale:.4g}:"
        yield f"'{name}'={(f.value or 0.0) / scale:.4g}{unit}{limits}"


def nagios_unknown(reason: str) -> str:
    """Format a Nagios line for a check that could not begin; the reason becomes one line without `|`."""
    words = "; ".join(line.strip() for line in reason.splitlines())
    return _nagios_text(f"BENCH UNKNOWN - {words}")


def nagios_not_checked(reason: str) -> str:
    """Format a Nagios line for a node that was left alone because its GPUs are in use."""
    return _nagios_text(f"BENCH OK - not checked, its GPUs are in use: {reason}")


def _nagios_text(text: str) -> str:
    """Return a text without `|`, which begins the figures, and cut to NAGIOS_TEXT_BYTES."""
    data = text.replace("|", "/").encode()
    if len(data) <= NAGIOS_TEXT_BYTES:
        return data.decode()
    return data[: NAGIOS_TEXT_BYTES - 3].decode(errors="ignore") + "..."

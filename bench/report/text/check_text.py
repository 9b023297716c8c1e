"""Format a node check for people: verdicts, what is wrong, what to do, stragglers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.base.terminal import Column, Table, Wrapped, plain_columns, table, wrapped
from bench.base.terminal_width import columns
from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import Finding, quantity, worst
from bench.report.text.check_summary import WORDS, by_check, counted_text, node_text, verdict_of

MOST_FIGURES = 6  # in a row of the table; more are summed up
MOST_COLUMNS = 108  # width of the table
LAG_HEADS = ("median", "spread", "slowest", "")
LAG_STEPS = ("spread", Wrapped("stragglers", 20), "median", "column 4")
LEAST_SUMMARY = 20  # columns of a check's summary


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
        """The distance of the slowest GPU below the median, in percent of the median."""
        return 100 * (1 - self.slowest / self.median)

    @property
    def cells(self) -> tuple[str, ...]:
        """The figure, the texts below LAG_HEADS, and how far it is under the median."""
        usual, slowest = quantity(self.median, self.unit), quantity(self.slowest, self.unit)
        spread, under = f"{self.spread_percent:.1f}%", f"{self.under_percent:.1f}%"
        return self.figure, usual, spread, f"GPU {self.gpu}", slowest, under


def text(results: CheckResults) -> str:
    """Format a node check: table, problems, stragglers, what is not possible, verdict."""
    blocks = [wrapped([_head(results)], ""), _table(results)]
    if problems := list(_problems(results.findings)):
        blocks.append(wrapped(problems, " " * 9))
    if lags := stragglers(results.findings):
        blocks.append(_lag_table(lags))
    if lines := not_possible(results.findings):
        head = "not possible here, which counts neither for nor against the node:"
        blocks.append(wrapped([head, *(f"  {line}" for line in lines)], " " * 4))
    return "\n\n".join([*blocks, wrapped([verdict_line(results)], "")])


def _head(results: CheckResults) -> str:
    profile = f"profile {results.profile.name}" if results.profile else "no profile of this device"
    return f"{node_text(results)}   level {results.level}   {profile}   run {results.run.id}"


def _table(results: CheckResults) -> str:
    rows = []
    for check, findings in by_check(results.findings).items():
        most_serious = worst(findings)
        assert most_serious is not None
        rows.append((check, verdict_of(findings), _summary(most_serious, findings)))
    heads = [*plain_columns(("check", "verdict")), Column("summary", "")]
    room = min(columns() or MOST_COLUMNS, MOST_COLUMNS)
    return table(Table(heads, rows), [Wrapped("summary", LEAST_SUMMARY)], room)


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
    """List the reasons why something cannot be checked on this node, each with its checks.

    The other findings of a check may count: then only a part of it is not possible.
    """
    checks: dict[str, dict[str, None]] = {}
    whole = {check for check, of_check in by_check(findings).items() if verdict_of(of_check) == "-"}
    for f in findings:
        if f.verdict == "not-run" and not f.counts:
            reason = f.found + (f" ({f.advice})" if f.advice else "")
            if f.basis == "reference":
                reason = f"no reference figure ({f.source})"
            name = f.check if f.check in whole else f"a part of {f.check}"
            checks.setdefault(reason, {})[name] = None
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
    return table(Table(plain_columns(headers, range(1, 6)), rows), LAG_STEPS)


def verdict_line(results: CheckResults) -> str:
    """Return the last line of the text: the verdict, how many checks have each, and SIMULATED."""
    line = f"{WORDS[results.verdict].upper()}   {counted_text(results.findings)}"
    return f"{line}   SIMULATED: not a real node" if results.simulated else line

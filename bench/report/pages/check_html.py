"""A node check as one page that needs no network: verdicts, stragglers, and the course of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.evidence import Evidence, GpuSample
from bench.node_check.judging.finding import VERDICTS, Finding, quantity
from bench.report.pages.page_frame import page, put
from bench.report.plots.svg import Box, Linear, Plot, Ticked, axes, inline, polyline, text
from bench.report.text.check_text import (
    WORDS,
    by_check,
    node_text,
    not_possible,
    stragglers,
    verdict_line,
    verdict_of,
)

PANES = (("power_watts", "power, W"), ("sm_mhz", "clock, MHz"), ("celsius", "temperature, °C"))
POINTS = 300
TONES = {"pass": "good", "fail": "bad", "warn": "warned", "not-run": "warned"}
COLUMNS = ("what", "found", "expected", "by whose word", "what to do")
STYLE = (
    "td.good{background:var(--good)}td.bad{background:var(--bad)}"
    "td.warned{background:var(--warn)}td.long{min-width:9rem}"
)


def write_check_html(path: Path, results: CheckResults, evidence: Evidence) -> None:
    put(path, page(f"bench check: {WORDS[results.verdict]}", _body(results, evidence), STYLE))


def _body(results: CheckResults, evidence: Evidence) -> str:
    blocks = [
        f"<h1>{escape(verdict_line(results))}</h1>",
        f'<p class="muted">{escape(node_text(results))}; level {results.level}; '
        f"run {escape(results.run.id)}; "
        f"bench {escape(results.bench_version)}</p>",
    ]
    bad = [f for f in results.findings if f.verdict != "pass" and f.counts]
    if bad:
        blocks.append(f"<h2>What is not as it should be</h2>{_table(sorted(bad, key=_gravity))}")
    blocks += _stragglers(results)
    blocks.append("<h2>Every check</h2>")
    blocks += [
        f"<details><summary>{escape(check)}: {verdict_of(found)}</summary>{_table(found)}</details>"
        for check, found in by_check(results.findings).items()
    ]
    plots = "".join(
        f"<figure><figcaption>{escape(p.title)}</figcaption>{inline(p)}</figure>"
        for p in _plots(results, evidence)
    )
    if plots:
        blocks.append(f'<h2>The course of the run</h2><div class="plots">{plots}</div>')
    if left := not_possible(results.findings):
        items = "".join(f"<li>{escape(line)}</li>" for line in left)
        blocks.append(f"<h2>Not possible here</h2><ul>{items}</ul>")
    return "\n".join(blocks)


def _gravity(finding: Finding) -> int:
    return VERDICTS.index(finding.verdict)


def _table(findings: Sequence[Finding]) -> str:
    heads = "".join(f'<th class="t">{name}</th>' for name in ("verdict", *COLUMNS))
    rows = "".join(map(_row, findings))
    return (
        f'<div class="scroll" tabindex="0"><table class="stacked"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(f: Finding) -> str:
    word = WORDS[f.verdict] if f.counts else "not possible here"
    cells = (f.subject, f.found, f.expected, f"{f.basis}: {f.source}", f.advice)
    tone = TONES[f.verdict] if f.counts else "none"
    return (
        f'<tr><td class="t {tone}">{word}</td>'
        + "".join(
            f'<td class="t long" data-head="{name}">{escape(cell)}</td>'
            for name, cell in zip(COLUMNS, cells, strict=True)
        )
        + "</tr>"
    )


def _stragglers(results: CheckResults) -> Iterator[str]:
    lags = stragglers(results.findings)
    if lags:
        rows = "".join(
            f'<tr><td class="t">{escape(lag.figure)}</td><td>{quantity(lag.median, lag.unit)}</td>'
            f"<td>{lag.spread_percent:.1f}%</td><td>GPU {lag.gpu}</td>"
            f"<td>{quantity(lag.slowest, lag.unit)}</td>"
            f"<td>{lag.under_percent:.1f}%</td></tr>"
            for lag in lags
        )
        yield (
            '<h2>Stragglers</h2><div class="scroll" tabindex="0"><table><thead><tr>'
            '<th class="t">figure</th><th>median</th>'
            f"<th>spread</th><th>slowest</th><th></th><th>under</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )


def _plots(results: CheckResults, evidence: Evidence) -> Iterator[Plot]:
    """One for each reading, a line a GPU."""
    course = evidence.course[:: max(1, len(evidence.course) // POINTS)]
    if len(course) < 2:
        return
    minutes = [(sample.at - course[0].at) / 60 for sample in course]
    for name, words in PANES:
        lines = []
        for gpu in results.node.gpus:
            seen = [
                (m, _value(s.gpus[gpu.index], name))
                for m, s in zip(minutes, course, strict=True)
                if gpu.index < len(s.gpus)
            ]
            lines.append([(m, v) for m, v in seen if v is not None])
        if any(lines):
            yield _plot(name, words, lines, [gpu.index for gpu in results.node.gpus])


def _value(sample: GpuSample, name: str) -> float | None:
    value = getattr(sample, name)
    return None if value is None else float(value)


def _plot(name: str, words: str, lines: list[list[tuple[float, float]]], gpus: list[int]) -> Plot:
    box = Box(64, 16, 610, 200)
    x = Linear(0, max(m for line in lines for m, _ in line) or 1.0, box.left, box.right)
    y = Linear(0, max(v for line in lines for _, v in line) * 1.1 or 1.0, box.bottom, box.top)
    parts = [axes(x, Ticked(y, tuple(y.ticks(4))), box, "minutes", "")]
    for i, (gpu, line) in enumerate(zip(gpus, lines, strict=True)):
        if line:
            parts.append(polyline(((x(m), y(v)) for m, v in line), f"s{i % 8} line"))
            parts.append(text(x(line[-1][0]) + 3, y(line[-1][1]) + 4, str(gpu), class_="small"))
    return Plot(name, words, f"{words} of {len(gpus)} GPUs over the run", 640, 240, "".join(parts))

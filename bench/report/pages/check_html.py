"""A node check as one HTML page that needs no network: verdicts, stragglers, and readings over the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.node_check.check_results import CheckResults
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import VERDICTS, Finding
from bench.report.markup import Markup, cells, document, el, fragment, items, scrolling_table, write_page
from bench.report.plots.svg import Box, Linear, Plot, axes, inline, polyline, text
from bench.report.text.check_summary import WORDS, by_check, node_text, verdict_of
from bench.report.text.check_text import LAG_HEADS, not_possible, stragglers, verdict_line

PANES = (("power_watts", "power, W"), ("sm_mhz", "clock, MHz"), ("celsius", "temperature, °C"))
POINTS = 300  # of a line, at most
LABEL_HEIGHT = 11  # pixels between two labels that can be read
TONES = {"pass": "good", "fail": "bad", "warn": "warned", "not-run": "warned"}
COLUMNS = ("what", "found", "expected", "basis", "what to do")
STYLE = (
    "td.good{background:var(--good)}td.bad{background:var(--bad)}"
    "td.warned{background:var(--warn)}td.long{min-width:6.5rem}"
)


def write_check_html(path: Path, results: CheckResults, evidence: Evidence) -> None:
    """Write the page; the course of the run comes from the evidence, everything else from the results."""
    title = f"bench check: {WORDS[results.verdict]}"
    write_page(path, document(title, *_body(results, evidence), style=STYLE))


def _body(results: CheckResults, evidence: Evidence) -> Iterator[Markup]:
    yield el("h1", verdict_line(results))
    run = f"level {results.level}; run {results.run.id}; bench {results.bench_version}"
    yield el("p", f"{node_text(results)}; {run}", class_="muted")
    problems = [f for f in results.findings if f.verdict != "pass" and f.counts]
    if problems:
        yield el("h2", "What is not as it should be")
        yield _table(sorted(problems, key=lambda finding: VERDICTS.index(finding.verdict)))
    if lags := stragglers(results.findings):
        yield el("h2", "Stragglers")
        rows = (el("tr", *cells(lag.cells, 1)) for lag in lags)
        yield scrolling_table(cells(("figure", *LAG_HEADS, "under"), 1, "th"), rows)
    yield el("h2", "Every check")
    for check, findings in by_check(results.findings).items():
        yield el("details", el("summary", f"{check}: {verdict_of(findings)}"), _table(findings))
    if plots := list(_plots(results, evidence)):
        figures = (el("figure", el("figcaption", plot.title), inline(plot)) for plot in plots)
        yield el("h2", "The course of the run")
        yield el("div", *figures, class_="plots")
    if lines := not_possible(results.findings):
        yield el("h2", "Not possible here")
        yield items(lines)


def _table(findings: Sequence[Finding]) -> Markup:
    heads = ("verdict", *COLUMNS)
    return scrolling_table(cells(heads, len(heads), "th"), map(_row, findings), class_="stacked")


def _row(f: Finding) -> Markup:
    word = WORDS[f.verdict] if f.counts else "not possible here"
    tone = TONES[f.verdict] if f.counts else "none"
    texts = (f.subject, f.found, f.expected, f"{f.basis}: {f.source}", f.advice)
    named = zip(COLUMNS, texts, strict=True)
    rest = (el("td", text, class_="t long", data_head=name) for name, text in named)
    return el("tr", el("td", word, class_=f"t {tone}"), *rest)


def _plots(results: CheckResults, evidence: Evidence) -> Iterator[Plot]:
    """Yield a plot for each kind of reading, with a line for each GPU."""
    course = evidence.course[:: max(1, len(evidence.course) // POINTS)]
    if len(course) < 2:
        return
    timed = [((sample.at - course[0].at) / 60, sample.gpus) for sample in course]
    for name, axis in PANES:
        lines = []
        for gpu in results.node.gpus:
            values = ((m, getattr(gpus[gpu.index], name)) for m, gpus in timed if gpu.index < len(gpus))
            lines.append([(m, float(value)) for m, value in values if value is not None])
        if any(lines):
            yield _plot(name, axis, lines, [gpu.index for gpu in results.node.gpus])


def _plot(name: str, axis: str, lines: list[list[tuple[float, float]]], gpus: list[int]) -> Plot:
    box = Box(64, 16, 610, 200)
    x = Linear(0, max(m for line in lines for m, _ in line) or 1.0, box.left, box.right)
    y = Linear(0, max(v for line in lines for _, v in line) * 1.1 or 1.0, box.bottom, box.top)
    parts = [axes(x, y, box, "minutes", "", y_ticks=y.ticks(4))]
    ends = []
    for i, (gpu, line) in enumerate(zip(gpus, lines, strict=True)):
        if line:
            parts.append(polyline(((x(m), y(v)) for m, v in line), f"s{i % 8} line"))
            ends.append((y(line[-1][1]) + 4, x(line[-1][0]) + 3, gpu))
    parts += (text(left, at, words, class_="small") for left, at, words in _end_labels(ends))
    return Plot(name, axis, f"{axis} of {len(gpus)} GPUs over the run", 640, 240, fragment(*parts), ())


def _end_labels(ends: Sequence[tuple[float, float, int]]) -> Iterator[tuple[float, float, str]]:
    """Yield a place and the GPUs of each label at the ends of lines; lines that end close share a label.

    `ends` have the height, the left edge and the GPU of each line.
    """
    groups: list[list[tuple[float, float, int]]] = []
    for end in sorted(ends):
        if groups and end[0] - groups[-1][-1][0] < LABEL_HEIGHT:
            groups[-1].append(end)
        else:
            groups.append([end])
    for group in groups:
        middle = (group[0][0] + group[-1][0]) / 2
        yield max(left for _, left, _ in group), middle, index_ranges(sorted(gpu for *_, gpu in group))


def index_ranges(numbers: Sequence[int]) -> str:
    """Format ascending whole numbers shortly: 0-3,5,7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)

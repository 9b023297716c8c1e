"""Format a fleet of checked nodes as a table, CSV or Markdown, the bad nodes first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tabulate import tabulate

from bench.base.terminal import Table, Wrapped, plain_columns, wrapped
from bench.base.terminal import table as terminal_table
from bench.base.terminal_width import columns
from bench.bundle.verdict import level_text
from bench.node_check.fleet import Fleet, RankedNode, Spread
from bench.node_check.judging.finding import Finding, quantity
from bench.records.text import count_text
from bench.report.text.check_summary import WORDS
from bench.report.text.escapes import csv_lines, markdown_text

COLUMNS = ("node", "verdict", "worst finding")
LEVEL = "level"  # of the signature, as in a comparison of runs that trained
MOST_COLUMNS = 132  # width of the table
STEPS = (Wrapped("worst finding", 36), Wrapped("node", 16), LEVEL, Wrapped("worst finding", 20))
SPREAD_STEPS = ("values", Wrapped("the fleet", 12), Wrapped("figure", 16))
SPREAD_HEADS = ("figure", "median", "spread", "values")
SIMULATED = "some of these nodes do not exist: their GPUs were simulated"
MOST_GOOD = 8  # nodes that pass are listed up to this many, then counted


def table(fleet: Fleet) -> str:
    """Format for a terminal: the bad nodes first, then some good ones, the fleet's figures, and notes."""
    room = min(columns() or MOST_COLUMNS, MOST_COLUMNS)
    blocks = [terminal_table(Table(plain_columns(columns_of(fleet)), [*_rows(fleet)]), STEPS, room)]
    if fleet.spreads:
        rows = [spread_texts(spread) for spread in fleet.spreads]
        heads = plain_columns(("the fleet", *SPREAD_HEADS), range(2, 5))
        blocks.append(terminal_table(Table(heads, rows), SPREAD_STEPS))
    return "\n\n".join([*blocks, wrapped(_notes(fleet), " " * 14)])


def spread_texts(spread: Spread) -> tuple[str, ...]:
    """Return the texts of a figure: the kind of GPU, then those below SPREAD_HEADS."""
    middle, share = quantity(spread.median, spread.unit), f"{spread.spread_percent:.1f}%"
    return spread.kind, spread.figure, middle, share, str(spread.count)


def columns_of(fleet: Fleet) -> tuple[str, ...]:
    """Return the heads of the columns; that of the level only if the nodes' levels differ."""
    differ = len({node.seen.assurance for node in fleet.nodes}) > 1
    return (*COLUMNS, LEVEL) if differ else COLUMNS


def level_of(node: RankedNode) -> str:
    """Put the level of the signature of a node's bundle in words."""
    return level_text(node.seen.signed_level, trusted=node.seen.trusted)


def _rows(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each node, below `_columns`."""
    count = len(columns_of(fleet))
    yield from (row[:count] for row in _whole_rows(fleet))


def _whole_rows(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    lemons, in_words = {lemon.uuid for lemon in fleet.lemons}, verdict_words(fleet)
    good = [node for node in fleet.nodes if node.verdict == "pass"]
    bad = [node for node in fleet.nodes if node.verdict != "pass"]
    for node in (*bad, *good[:MOST_GOOD]):
        yield node.seen.name, in_words(node), worst_finding_text(node, lemons), level_of(node)
    if len(good) > MOST_GOOD:
        yield f"and {len(good) - MOST_GOOD} more", WORDS["pass"], "", ""


def verdict_words(fleet: Fleet) -> Callable[[RankedNode], str]:
    """Return the function that puts a verdict in words, with the check's depth if nodes differ in it."""
    differ = len({node.seen.level for node in fleet.nodes}) > 1

    def in_words(node: RankedNode) -> str:
        return f"{WORDS[node.verdict]} ({node.seen.level})" if differ else WORDS[node.verdict]

    return in_words


def worst_finding_text(node: RankedNode, lemons: set[str]) -> str:
    """Describe the worst finding of a node or, without any, its largest deviation from the fleet."""
    if node.worst is None:
        deviation = node.deviation_percent
        if deviation is None:
            return ""
        side = "under" if deviation < 0 else "over"
        return f"its worst figure is {abs(deviation):.1f}% {side} the fleet's median"
    f = node.worst
    uuid = node.seen.uuids.get(str(f.gpu)) if f.gpu is not None else None
    repeated = f"; {uuid} failed before" if uuid in lemons else ""
    gpus = {g.gpu for g in node.findings if (g.check, g.verdict) == (f.check, f.verdict)} - {f.gpu, None}
    others = f"; {count_text(len(gpus), 'other GPU')} too" if f.gpu is not None and gpus else ""
    return f"{f.line}{others}{repeated}"


def _notes(fleet: Fleet) -> Iterator[str]:
    for lemon in fleet.lemons:
        yield f"repeat lemon  {lemon.uuid}"
        yield from (f"              {line}" for line in lemon.times)
    for path in fleet.older:
        yield f"older         {path}: the same GPUs were checked again"
    if is_simulated(fleet):
        yield f"SIMULATED     {SIMULATED}"
    yield counts_text(fleet)


def is_simulated(fleet: Fleet) -> bool:
    """Whether the GPUs of any node were simulated."""
    return any(node.seen.simulated for node in fleet.nodes)


def counts_text(fleet: Fleet) -> str:
    """Count the nodes with each verdict that occurs."""
    counts = {word: sum(node.verdict == v for node in fleet.nodes) for v, word in WORDS.items()}
    return ", ".join(f"{count} {word.upper()}" for word, count in counts.items() if count)


CSV_NODE = ("node", "run", "started_at", "level", "gpu_model", "verdict")
CSV_SIGNED = ("signed_level", "trusted")
CSV_JUDGED = ("check", "subject", "finding_verdict", "basis", "value", "reference", "unit")
CSV_FINDING = (*CSV_JUDGED, "uuid", "found", "advice")


def as_csv(fleet: Fleet) -> str:
    """Write a row for each finding; a node without findings has one row."""
    return csv_lines(
        (*CSV_NODE, *CSV_FINDING, *CSV_SIGNED), (row for node in fleet.nodes for row in _csv_rows(node))
    )


def _csv_rows(node: RankedNode) -> Iterator[tuple[object, ...]]:
    seen = node.seen
    about_node = (seen.name, seen.run_id, seen.started_at, seen.level, seen.kind, node.verdict)
    for finding in node.findings or (None,):
        yield (*about_node, *_csv_finding(node, finding), seen.signed_level, seen.trusted)


def _csv_finding(node: RankedNode, finding: Finding | None) -> tuple[object, ...]:
    """Return the cells below CSV_FINDING, empty for a node without findings."""
    if finding is None:
        return ("",) * len(CSV_FINDING)
    f, uuid = finding, node.seen.uuids.get(str(finding.gpu), "")
    return f.check, f.subject, f.verdict, f.basis, f.value, f.reference, f.unit, uuid, f.found, f.advice


def as_markdown(fleet: Fleet) -> str:
    """Format as Markdown: the rows of the terminal's table, then its notes as a list."""
    rows = [list(map(markdown_text, row)) for row in _rows(fleet)]
    body = tabulate(rows, columns_of(fleet), tablefmt="github", disable_numparse=True)
    return "\n".join([body, "", *(f"- {markdown_text(line.strip())}" for line in _notes(fleet))])

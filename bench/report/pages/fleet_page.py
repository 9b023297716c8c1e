"""A fleet of checked nodes, as a table, CSV, Markdown or a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tabulate import tabulate

from bench.node_check.fleet import Fleet, RankedNode
from bench.node_check.judging.finding import quantity
from bench.report.pages.check_html import STYLE
from bench.report.pages.page_frame import page, put
from bench.report.text.check_text import WORDS

COLUMNS = ("node", "verdict", "worst finding")
SIMULATED = "some of these nodes were never there"


def table(fleet: Fleet) -> str:
    blocks = [tabulate(_rows(fleet), COLUMNS, disable_numparse=True, maxcolwidths=[28, None, 90])]
    if fleet.spreads:
        rows = [
            (s.kind, s.figure, quantity(s.median, s.unit), f"{s.spread_percent:.1f}%", str(s.count))
            for s in fleet.spreads
        ]
        headers = ("the fleet", "figure", "median", "spread", "values")
        blocks.append(
            tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", *["right"] * 3))
        )
    return "\n\n".join([*blocks, "\n".join(_notes(fleet))])


def _rows(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    lemons = {lemon.uuid for lemon in fleet.lemons}
    good = [node for node in fleet.nodes if node.verdict == "pass"]
    for node in fleet.nodes:
        if node.verdict != "pass":
            yield node.seen.name, WORDS[node.verdict], _worst(node, lemons)
    for node in good[:8]:
        yield node.seen.name, WORDS["pass"], _worst(node, lemons)
    if len(good) > 8:
        yield f"and {len(good) - 8} more", WORDS["pass"], ""


def _worst(node: RankedNode, lemons: set[str]) -> str:
    if node.worst is None:
        off = node.deviation_percent
        if off is None:
            return ""
        return f"its worst figure is {abs(off):.1f}% {'under' if off < 0 else 'over'} the fleet's median"
    f = node.worst
    uuid = node.seen.uuids.get(str(f.gpu)) if f.gpu is not None else None
    before = f"; {uuid} failed before" if uuid in lemons else ""
    gpus = {g.gpu for g in node.findings if (g.check, g.verdict) == (f.check, f.verdict)} - {f.gpu, None}
    others = f"; {len(gpus)} other GPU{'s' * (len(gpus) > 1)} too" if f.gpu is not None and gpus else ""
    return f"{f.line}{others}{before}"


def _notes(fleet: Fleet) -> Iterator[str]:
    for lemon in fleet.lemons:
        yield f"repeat lemon  {lemon.uuid}"
        yield from (f"              {line}" for line in lemon.times)
    for path in fleet.older:
        yield f"older         {path}: the same GPUs were checked again"
    if _simulated(fleet):
        yield f"SIMULATED     {SIMULATED}"
    yield _counted(fleet)


def _simulated(fleet: Fleet) -> bool:
    return any(node.seen.simulated for node in fleet.nodes)


def _counted(fleet: Fleet) -> str:
    counts = {word: sum(node.verdict == v for node in fleet.nodes) for v, word in WORDS.items()}
    return ", ".join(f"{count} {word.upper()}" for word, count in counts.items() if count)


def as_csv(fleet: Fleet) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            "node",
            "run",
            "started_at",
            "level",
            "gpu_model",
            "verdict",
            "check",
            "subject",
            "finding_verdict",
            "basis",
            "value",
            "reference",
            "unit",
            "uuid",
            "found",
            "advice",
        )
    )
    for node in fleet.nodes:
        for f in node.findings or (None,):
            cells = ("",) * 10 if f is None else (
                f.check, f.subject, f.verdict, f.basis, f.value, f.reference, f.unit,
                node.seen.uuids.get(str(f.gpu), ""), f.found, f.advice,
            )  # fmt: skip
            writer.writerow(
                (
                    node.seen.name,
                    node.seen.run_id,
                    node.seen.started_at,
                    node.seen.level,
                    node.seen.kind,
                    node.verdict,
                    *cells,
                )
            )
    return out.getvalue()


def as_markdown(fleet: Fleet) -> str:
    body = tabulate(list(_rows(fleet)), COLUMNS, tablefmt="github", disable_numparse=True)
    return "\n".join([body, "", *(f"- {line.strip()}" for line in _notes(fleet))])


def write_fleet_html(path: Path, fleet: Fleet) -> None:
    """The answer first: how many are good, and which; then what it rests on."""
    simulated = f'<p class="alert">SIMULATED: {SIMULATED}</p>' if _simulated(fleet) else ""
    body = (
        f"<h1>Which of these nodes are good</h1><p><strong>{_counted(fleet)}</strong></p>{simulated}"
        f"{_nodes_html(fleet)}{_lemons_html(fleet)}{_spreads_html(fleet)}{_older_html(fleet)}"
    )
    put(path, page(f"bench: {len(fleet.nodes)} nodes", body, STYLE))


def _nodes_html(fleet: Fleet) -> str:
    lemons = {lemon.uuid for lemon in fleet.lemons}
    rows = "".join(
        f'<tr><td class="t">{escape(node.seen.name)}</td>'
        f'<td class="t {_tone(node)}">{WORDS[node.verdict]}</td>'
        f'<td class="t long" data-head="worst finding">{escape(_worst(node, lemons))}</td>'
        f'<td class="t" data-head="GPU">{escape(node.seen.kind)}</td>'
        f'<td class="t" data-head="checked">{escape(node.seen.started_at)}</td></tr>'
        for node in fleet.nodes
    )
    return (
        '<div class="scroll" tabindex="0"><table class="stacked"><thead><tr><th class="t">node</th>'
        '<th class="t">verdict</th><th class="t">worst finding</th><th class="t">GPU</th>'
        f'<th class="t">checked</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _lemons_html(fleet: Fleet) -> str:
    items = "".join(
        f"<li>{escape(lemon.uuid)}<ul>{''.join(f'<li>{escape(line)}</li>' for line in lemon.times)}</ul></li>"
        for lemon in fleet.lemons
    )
    return f'<h2>Repeat lemons</h2><ul class="said">{items}</ul>' if items else ""


def _spreads_html(fleet: Fleet) -> str:
    rows = "".join(
        f'<tr><td class="t">{escape(s.kind)}</td><td class="t">{escape(s.figure)}</td>'
        f"<td>{escape(quantity(s.median, s.unit))}</td><td>{s.spread_percent:.1f}%</td>"
        f"<td>{s.count}</td></tr>"
        for s in fleet.spreads
    )
    if not rows:
        return ""
    return (
        '<h2>The fleet</h2><div class="scroll" tabindex="0"><table><thead><tr><th class="t">GPU</th>'
        '<th class="t">figure</th><th>median</th><th>spread</th><th>values</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _older_html(fleet: Fleet) -> str:
    items = "".join(f"<li>{escape(path)}</li>" for path in fleet.older)
    words = f"{len(fleet.older)} older: the same GPUs were checked again"
    return f'<details><summary>{words}</summary><ul class="said">{items}</ul></details>' if items else ""


def _tone(node: RankedNode) -> str:
    return {"pass": "good", "fail": "bad"}.get(node.verdict, "warned")

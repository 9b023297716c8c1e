"""Format a comparison as table, Markdown or JSON, the answer first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.base import terminal
from bench.base.strict_json import pretty_json, to_json
from bench.base.terminal import Column, Table, Wrapped
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.matrix import matrix_of
from bench.report.text.answer_text import answer_text, own_answer, question_text
from bench.report.text.comparison_csv import csv_text
from bench.report.text.escapes import markdown_table, markdown_text
from bench.report.text.machine_rows import (
    FIXED_COLUMNS,
    HEADERS,
    OFFER_COLUMNS,
    TEXT_COLUMNS,
    machine_rows,
    offers,
)
from bench.report.text.matrix_text import matrix_markdown, matrix_text
from bench.report.text.remarks import ABOUT, notes, remarks
from bench.report.text.run_table import left_out_line

# How tables become narrower on a terminal. JSON, CSV and the report have all columns.
STEPS = (
    Wrapped("note", 20), "run", "level", "kwh", "mfu", "node_kwh", "floor", "limit", "memory", "batch",
    Wrapped("setting", 20), "slower", "co2", Wrapped("machine", 12), "setting", Wrapped("note", 14),
)  # fmt: skip
OFFER_STEPS = (
    Wrapped("note", 20),
    "billion",
    "worth",
    "days",
    Wrapped("machine", 12),
    "price",
    Wrapped("note", 14),
)


def table(comparison: Comparison, chosen: Sequence[str] | None = None) -> str:
    """Format for a terminal: question and answer, the matrix, each model with its remarks, notes.

    `chosen` are the names of the columns to show, of those in HEADERS.
    """
    if not comparison.parts:
        return "nothing to compare"
    answer = question_text(comparison), f"answer: {answer_text(comparison)}"
    above = terminal.wrapped(answer, " " * 4)
    matrix = matrix_text(matrix_of(comparison), comparison.currency)
    machines = machine_tables(comparison.parts)
    offered = [offer_table(part, comparison) for part in comparison.parts]
    fitted = terminal.fitted_tables([one for one in machines if one], STEPS, chosen)
    fitted_offers = terminal.fitted_tables([one for one in offered if one], OFFER_STEPS)
    priced = iter(fitted_offers.texts)
    ranked = iter(fitted.texts)
    blocks = [
        _text_part(part, comparison, next(ranked) if one else "", next(priced) if offers else "")
        for part, one, offers in zip(comparison.parts, machines, offered, strict=True)
    ]
    hidden = tuple(f"{head}:" for head in (*fitted.left_out, *fitted_offers.left_out))
    shown = [note for note in notes(comparison) if not note.startswith(hidden)]
    wider = "a wider terminal and --format csv have them"
    of_offers = left_out_line(fitted_offers.left_out, "beside offers ", wider)
    left_out = [*left_out_line(fitted.left_out), *of_offers]
    below = terminal.wrapped([*shown, *left_out], " " * 4)
    return "\n\n".join([above, *filter(None, [matrix]), *blocks, below])


def _text_part(part: ModelPart, comparison: Comparison, machines: str, priced: str) -> str:
    tables = "\n\n".join(filter(None, [machines, priced]))
    lead = [part.title, *own_answer(part, comparison)]
    shown = list(remarks(part, comparison))
    above = terminal.wrapped(lead, " " * 4) + (f"\n{tables}" if tables else "")
    below = terminal.wrapped([f"{ABOUT}:", *shown], " " * 4) if shown else ""
    return "\n\n".join(filter(None, (above, below)))


def machine_tables(parts: Sequence[ModelPart]) -> list[Table | None]:
    """Return a table with a row for each machine, or None, for each part; all have the same columns."""
    every = [machine_rows(part) for part in parts]
    names = [name for name in HEADERS if any(row[name] for rows in every for row in rows)]
    heads = [Column(n, HEADERS[n], n not in TEXT_COLUMNS, n in FIXED_COLUMNS) for n in names]
    return [Table(heads, [[row[n] for n in names] for row in rows]) if rows else None for rows in every]


def offer_table(part: ModelPart, comparison: Comparison) -> Table | None:
    """Return a row for each price; None without any."""
    priced = [row for row, _ in offers(part, comparison)]
    return Table(OFFER_COLUMNS, priced) if priced else None


def markdown(comparison: Comparison) -> str:
    """Format as Markdown, in the order of `table`."""
    blocks = ["### " + ("Answer" if comparison.parts else "Nothing to compare")]
    if comparison.parts:
        blocks += [markdown_text(text) for text in (question_text(comparison), answer_text(comparison))]
    if matrix := matrix_markdown(matrix_of(comparison), comparison.currency):
        blocks.append(matrix)
    for part, machines in zip(comparison.parts, machine_tables(comparison.parts), strict=True):
        blocks.append(f"### {markdown_text(part.title)}")
        blocks += map(markdown_text, own_answer(part, comparison))
        blocks += map(markdown_table, filter(None, (machines, offer_table(part, comparison))))
        if shown := [f"- {markdown_text(line)}" for line in remarks(part, comparison)]:
            blocks += [f"{ABOUT}:", "\n".join(shown)]
    return "\n\n".join([*blocks, "\n".join(f"- {markdown_text(note)}" for note in notes(comparison))])


def json_text(comparison: Comparison) -> str:
    """Return the document of `bench compare --json`, with every digit."""
    return pretty_json(to_json(comparison)).decode()


FORMATS = {"table": table, "markdown": markdown, "csv": csv_text, "json": json_text}

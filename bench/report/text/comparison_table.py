"""Format a comparison as table, Markdown or JSON, the answer first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from bench.base.strict_json import pretty_json, to_json
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.matrix import matrix_of
from bench.report.text import terminal
from bench.report.text.answer_text import answer_text, own_answer, question_text
from bench.report.text.comparison_csv import csv_text
from bench.report.text.escapes import markdown_text
from bench.report.text.machine_rows import HEADERS, OFFER_ALIGN, OFFER_HEADERS, TEXT_COLUMNS, columns, offers
from bench.report.text.matrix_text import matrix_markdown, matrix_text
from bench.report.text.remarks import ABOUT, notes, remarks

# Columns for which a narrow terminal has no room, the first to go first. JSON, CSV and the report have all.
SPARE = (
    "run", "level", "kWh a run", "of floor", "of limit", "memory", "batch", "times the fastest", "setting",
)  # fmt: skip
SPARE_OF_OFFERS = ("days",)
Table = tuple[Sequence[Sequence[str]], Sequence[str], Sequence[str]]


def table(comparison: Comparison) -> str:
    """Format for a terminal: question and answer, the matrix, each model with its remarks, notes."""
    if not comparison.parts:
        return "nothing to compare"
    answer = question_text(comparison), f"answer: {answer_text(comparison)}"
    head = terminal.wrapped(answer, " " * 4)
    matrix = matrix_text(matrix_of(comparison), comparison.currency)
    blocks = [_text_part(part, comparison) for part in comparison.parts]
    return "\n\n".join([head, *filter(None, [matrix]), *blocks, terminal.wrapped(notes(comparison), " " * 4)])


def _text_part(part: ModelPart, comparison: Comparison) -> str:
    tables = "\n\n".join(
        terminal.narrowed(*each, SPARE_OF_OFFERS if each[1] == OFFER_HEADERS else SPARE)
        for each in _tables(part, comparison)
    )
    lead = [part.title, *own_answer(part, comparison)]
    told = list(remarks(part, comparison))
    above = terminal.wrapped(lead, " " * 4) + (f"\n{tables}" if tables else "")
    below = terminal.wrapped([f"{ABOUT}:", *told], " " * 4) if told else ""
    return "\n\n".join(filter(None, (above, below)))


def _tables(part: ModelPart, comparison: Comparison) -> Iterator[Table]:
    """Yield rows, heads and alignment of the table of machines and that of offers, unless they are empty."""
    if part.entries or part.guesses:
        names, rows = columns(part)
        aligned = ["left" if name in TEXT_COLUMNS else "right" for name in names]
        yield rows, [HEADERS[name] for name in names], aligned
    if priced := [row for row, _ in offers(part, comparison)]:
        yield priced, OFFER_HEADERS, OFFER_ALIGN


def markdown(comparison: Comparison) -> str:
    """Format as Markdown, in the order of `table`."""
    blocks = ["### " + ("Answer" if comparison.parts else "Nothing to compare")]
    if comparison.parts:
        blocks += [markdown_text(text) for text in (question_text(comparison), answer_text(comparison))]
    if matrix := matrix_markdown(matrix_of(comparison), comparison.currency):
        blocks.append(matrix)
    for part in comparison.parts:
        blocks.append(f"### {markdown_text(part.title)}")
        blocks += map(markdown_text, own_answer(part, comparison))
        blocks += [_pipes(*each) for each in _tables(part, comparison)]
        if told := [f"- {markdown_text(line)}" for line in remarks(part, comparison)]:
            blocks += [f"{ABOUT}:", "\n".join(told)]
    return "\n\n".join([*blocks, "\n".join(f"- {markdown_text(note)}" for note in notes(comparison))])


def _pipes(rows: Sequence[Sequence[str]], heads: Sequence[str], aligned: Sequence[str]) -> str:
    safe = [[markdown_text(cell) for cell in row] for row in rows]
    return tabulate(safe, heads, tablefmt="pipe", disable_numparse=True, colalign=aligned)


def json_text(comparison: Comparison) -> str:
    return pretty_json(to_json(comparison)).decode()


FORMATS = {"table": table, "markdown": markdown, "csv": csv_text, "json": json_text}

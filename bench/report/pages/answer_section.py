"""The first section of the report: question, answer, matrix, and the plot over all models.

In: a Comparison. Out: markup that is complete without a script. Each cell of the matrix has `data-part` and
`data-machine`, the names of its part and of its machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.records.text import figures, money_text
from bench.report.compare.comparison import Comparison
from bench.report.compare.matrix import Matrix, MatrixCell, MatrixRow, matrix_of
from bench.report.markup import Markup, el, scrolling_table
from bench.report.plots import model_plots
from bench.report.plots.overall import overall_plot
from bench.report.plots.svg import Plot, figure
from bench.report.text.answer_text import answer_sentences, capital, days_text, question_text

NOT_KEPT = {
    "no": ("misses the deadline", "over budget"),
    "perhaps": ("perhaps misses the deadline", "perhaps over budget"),
}


def answer_section(comparison: Comparison, under: str, plot: Plot | None) -> Markup:
    """Make the section; `under` is a line that follows the answer, and `plot` its plot."""
    matrix = matrix_of(comparison)
    blocks = [el("h2", "The answer", class_="heard"), *_sentences(comparison)]
    blocks.append(el("p", under, class_="muted"))
    if matrix.cells:
        blocks.append(_table(matrix, comparison.currency))
    if plot is not None:
        blocks.append(el("div", figure(plot), class_="plots"))
    return el("section", *blocks, id="answer")


def _sentences(comparison: Comparison) -> Iterator[Markup]:
    yield el("p", f"{capital(question_text(comparison))}.", class_="asked")
    if comparison.parts:
        first, second = answer_sentences(comparison)
        yield el("p", el("strong", first), f" {second}", class_="answer")


def main_plot(comparison: Comparison) -> Plot | None:
    """Return the plot over all models; of a single part, its own plot of the cost of a run."""
    if len(comparison.parts) != 1:
        return overall_plot(comparison)
    of_part = model_plots(comparison.parts[0], comparison, ("money",))
    return next((plot for plot in of_part if plot.name.endswith("-run-cost")), None)


def _table(matrix: Matrix, currency: str) -> Markup:
    """Make the matrix. On a phone each row becomes a block, in which `data-head` names a cell's column."""
    names = [row.name for row in matrix.rows]
    corner, across = ("machine", names) if matrix.turned else ("model", list(matrix.machines))
    heads = (el("th", head, scope="col", class_="t") for head in (corner, *across))
    if matrix.turned:
        lines = [
            (el("th", machine, scope="row", class_="t"), [(row, row.cells[i]) for row in matrix.rows])
            for i, machine in enumerate(matrix.machines)
        ]
    else:
        lines = [
            (
                el("th", el("a", row.name, href=f"#{row.part.name}"), scope="row", class_="t"),
                [(row, cell) for cell in row.cells],
            )
            for row in matrix.rows
        ]
    body = (
        el(
            "tr",
            name,
            *(_cell(*pair, head, currency) for pair, head in zip(cells, across, strict=True)),
        )
        for name, cells in lines
    )
    label = "days and the cost of a run, for each model and machine"
    return scrolling_table(heads, body, class_="matrix stacked", label=label)


def _cell(row: MatrixRow, cell: MatrixCell | None, head: str, currency: str) -> Markup:
    if cell is None:
        return el("td")
    parts = [el("span", f"{figures(cell.days)} {days_text(cell.days).rpartition(' ')[2]}", class_="days")]
    if cell.run_cost is not None:
        cost = money_text(cell.run_cost, currency) + (" of its price" if cell.bought else "")
        parts += [Markup(" "), el("span", cost, class_="cost")]
    if said := list(_spoken(cell)):
        parts += [Markup(" "), el("small", ", ".join(said))]
    kinds = {"chosen": cell.chosen, "est": not cell.measured, "no": cell.kept == "no"}
    return el(
        "td",
        *parts,
        class_=" ".join(["t", *(kind for kind, present in kinds.items() if present)]),
        data_part=row.part.name,
        data_machine=cell.machine,
        data_head=head,
    )


def _spoken(cell: MatrixCell) -> Iterator[str]:
    """Describe in words what the style of a cell shows."""
    if cell.chosen:
        yield "the answer"
    if not cell.measured:
        yield "estimate"
    for verdict, words in NOT_KEPT.items():
        for value, text in zip((cell.in_time, cell.in_budget), words, strict=True):
            if value == verdict:
                yield text
    yield from cell.marks
